package neigh

import (
	"crypto/sha256"
	"encoding/binary"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// plainMAC returns the MAC of the first interface at gid: the first 46 bits of
// the SHA-256 of the GID, made a locally administered unicast address. SHA-256
// makes it expensive for an attacker who can choose GIDs to hit another peer's
// MAC. There is no secret, because the MAC must be the same after a restart,
// which the host's cache survives.
func plainMAC(gid hca.GID) ipoib.MAC {
	return localMAC(sha256.Sum256(gid[:]))
}

// rehashedMAC returns the n-th MAC, counted from 1, of an interface whose plain
// MAC is taken: the SHA-256 of GID, QPN and counter, the latter two of 4 bytes
// each. Including the QPN prevents long runs of collisions among many interfaces
// at one GID.
func rehashedMAC(gid hca.GID, qpn hca.QPN, n uint32) ipoib.MAC {
	var b [16 + 4 + 4]byte
	copy(b[:], gid[:])
	binary.BigEndian.PutUint32(b[16:], uint32(qpn))
	binary.BigEndian.PutUint32(b[20:], n)
	return localMAC(sha256.Sum256(b[:]))
}

// freeMAC returns the first MAC for an interface that is not taken. Peers that moved to
// other QPNs may have taken many rehashes of this QPN. After maxRehashes the counter
// therefore continues at salt, which differs from call to call, so that a peer costs
// only a few hashes.
func freeMAC(gid hca.GID, qpn hca.QPN, salt uint32, taken func(ipoib.MAC) bool) ipoib.MAC {
	m := plainMAC(gid)
	for n := uint32(1); taken(m); n++ {
		if n == maxRehashes+1 {
			n = salt | 1<<31
		}
		m = rehashedMAC(gid, qpn, n)
	}
	return m
}

// localMAC sets the local bit and clears the group bit (IEEE 802, clause 8.2).
func localMAC(sum [sha256.Size]byte) (m ipoib.MAC) {
	copy(m[:], sum[:])
	m[0] = m[0]&^1 | 2
	return m
}
