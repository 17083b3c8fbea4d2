package neigh

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// TestPlainMAC pins the hash, because hosts' caches outlive a restart and an
// upgrade. The expected first bytes of the SHA-256 are from sha256sum.
func TestPlainMAC(t *testing.T) {
	// printf '\0\0\0\0\0\0\0\0\0\0\377\377\300\0\2\2' | sha256sum: 7a60b6620d75...
	if got, want := plainMAC(gidOf("192.0.2.2")), (ipoib.MAC{0x7a, 0x60, 0xb6, 0x62, 0x0d, 0x75}); got != want {
		t.Errorf("plain MAC %v, want %v", got, want)
	}
	// The same with 00000022 00000001 appended.
	if got, want := rehashedMAC(gidOf("192.0.2.2"), 0x22, 1), (ipoib.MAC{0x12, 0x41, 0xbf, 0x0c, 0x76, 0x27}); got != want {
		t.Errorf("rehashed MAC %v, want %v", got, want)
	}
}

func TestMACIsLocalUnicast(t *testing.T) {
	for i := range 1000 {
		gid := hca.GID{15: byte(i), 14: byte(i >> 8)}
		for _, m := range []ipoib.MAC{plainMAC(gid), rehashedMAC(gid, 7, 1)} {
			if m[0]&3 != 2 {
				t.Fatalf("MAC %v of %v is not a local unicast address", m, gid)
			}
		}
	}
}

func TestFreeMACCountsPastTaken(t *testing.T) {
	e := peerB
	taken := map[ipoib.MAC]bool{plainMAC(e.gid): true, rehashedMAC(e.gid, e.qpn, 1): true}
	got := freeMAC(e.gid, e.qpn, 0, func(m ipoib.MAC) bool { return taken[m] })
	if want := rehashedMAC(e.gid, e.qpn, 2); got != want {
		t.Errorf("MAC %v, want the second rehash %v", got, want)
	}
}

// TestCollisionOfPlainMACs: a peer whose plain MAC is taken gets a rehash, which
// the data path uses too. The collision is artificial, because a real one would
// need 46 equal bits.
func TestCollisionOfPlainMACs(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerC, ipC)
	c := b.table.peers.live.byEndpoint[peerC]
	b.table.peers.live.setMAC(c, plainMAC(peerB.gid))
	b.table.view.show(c)
	b.meet(peerB, ipB)
	if got, want := b.macOf(peerB), rehashedMAC(peerB.gid, peerB.qpn, 1); got != want {
		t.Fatalf("MAC of B %v, want %v", got, want)
	}
	b.advance(latePause)
	if got, _ := b.snap.PeerMAC(peerB.key()); got != b.macOf(peerB) {
		t.Errorf("MAC %v in the data path, %v in the table", got, b.macOf(peerB))
	}
}
