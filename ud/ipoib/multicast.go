package ipoib

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca"
)

// ScopeLinkLocal is the usual scope of an MGID (RFC 4391 section 4, value of RFC 4291 section 2.7).
const ScopeLinkLocal uint8 = 0x2

// Signatures of an MGID, bytes 2 and 3 (RFC 4391 section 4).
const (
	signatureIPv4 = 0x401b
	signatureIPv6 = 0x601b
)

// MGID layout (RFC 4391 section 4).
//
//	[0xff][flags 4 bits, scope 4 bits][signature 2][P_Key 2][group 10]
//
// The flags are 0001: a transient group. The P_Key has its full-membership bit
// set, because limited members of a partition use the same groups.
func newMGID(scope uint8, signature uint16, pkey hca.PKey) (g hca.GID) {
	g[0] = 0xff
	g[1] = 0x10 | scope&0x0f
	binary.BigEndian.PutUint16(g[2:], signature)
	binary.BigEndian.PutUint16(g[4:], uint16(pkey|hca.PKeyMembership))
	return g
}

// limitedBroadcast is 255.255.255.255.
var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// BroadcastMGID returns the group that every IPoIB interface of a partition
// joins first; it defines the link (RFC 4391 sections 4 and 5). Only the low 4
// bits of scope count.
func BroadcastMGID(scope uint8, pkey hca.PKey) hca.GID {
	g := newMGID(scope, signatureIPv4, pkey)
	binary.BigEndian.PutUint32(g[12:], 0xffffffff)
	return g
}

// GroupMGID returns the group of an IP multicast address. It contains the low
// 28 bits of an IPv4 address or the low 80 bits of an IPv6 address;
// 255.255.255.255 maps to the broadcast group. The scope is the scope of the link's
// broadcast group, whatever scope the IPv6 address has (RFC 4391 section 4).
func GroupMGID(scope uint8, pkey hca.PKey, group netip.Addr) hca.GID {
	if group == limitedBroadcast {
		return BroadcastMGID(scope, pkey)
	}
	if group.Is4() {
		return groupMGID4(scope, pkey, group.As4())
	}
	g := newMGID(scope, signatureIPv6, pkey)
	ip := group.As16()
	copy(g[6:], ip[6:])
	return g
}

func groupMGID4(scope uint8, pkey hca.PKey, ip [4]byte) hca.GID {
	g := newMGID(scope, signatureIPv4, pkey)
	copy(g[12:], ip[:])
	g[12] &= 0x0f
	return g
}

// GroupMAC returns the Ethernet address of an IP multicast address: 01:00:5e
// and 23 bits (RFC 1112 section 6.4), 33:33 and 32 bits (RFC 2464 section 7),
// broadcast for 255.255.255.255.
func GroupMAC(group netip.Addr) MAC {
	if group == limitedBroadcast {
		return Broadcast
	}
	if group.Is4() {
		ip := group.As4()
		return MAC{0x01, 0x00, 0x5e, ip[1] & 0x7f, ip[2], ip[3]}
	}
	ip := group.As16()
	return MAC{0x33, 0x33, ip[12], ip[13], ip[14], ip[15]}
}

// SolicitedNode returns the destination of neighbour solicitations for an IPv6
// address: the prefix ff02::1:ff00:0/104 followed by its low 24 bits (RFC 4291
// section 2.7.1).
func SolicitedNode(target netip.Addr) netip.Addr {
	g := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	ip := target.As16()
	copy(g[13:], ip[13:])
	return netip.AddrFrom16(g)
}
