package hca

import (
	"fmt"
	"net/netip"
)

// QPN is a 24-bit queue pair number.
type QPN uint32

// Special queue pair numbers (IBA 1.4, 3.5.10 and 10.5), and the mask of all.
const (
	QPNGSI       QPN = 1        // general services interface; never allocated
	QPNMulticast QPN = 0xffffff // destination QPN of every multicast packet
	QPNMask      QPN = 0xffffff
)

func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

// PKey is a partition key; the top bit means full membership (IBA 10.9.1.1).
type PKey uint16

// Partition key constants (IBA 10.9.1.2).
const (
	PKeyDefault    PKey = 0xffff
	PKeyMembership PKey = 0x8000
)

// Match reports whether a packet with key q matches the table entry p: their low
// 15 bits are equal and not zero (invalid), and at least one of the two is a full
// member (IBA 10.9.3).
func (p PKey) Match(q PKey) bool {
	const base = ^PKeyMembership
	return p&base != 0 && p&base == q&base && (p|q)&PKeyMembership != 0
}

// QKey is a queue key. In a send work request a key with its top bit set means
// the sending QP's own key (IBA 10.2.5, "controlled Q_Key").
type QKey uint32

// QKeyControlled is the bit that selects the QP's own Q_Key.
const QKeyControlled QKey = 1 << 31

// GUID is an EUI-64 in network byte order.
type GUID [8]byte

func (g GUID) String() string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7])
}

// GID is a 128-bit global identifier in network byte order. On RoCEv2 it is an
// IPv6 address, or an IPv4 address in the mapped form ::ffff:a.b.c.d.
type GID [16]byte

// GIDFromAddr returns the RoCEv2 GID of an IP address (RoCEv2 annex A17.5.2).
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the IP address of a RoCEv2 GID. An IPv4-mapped address is unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the table entry is empty.
func (g GID) IsZero() bool { return g == GID{} }

// IsMulticast reports whether g is a multicast GID: ff00::/8 (IBA 4.1.1), or on
// RoCEv2 a mapped IPv4 multicast address.
func (g GID) IsMulticast() bool { return g.Addr().IsMulticast() }

// String returns an IPv4 address, or an IPv6 address in the form of RFC 5952.
func (g GID) String() string { return g.Addr().String() }

// LID is the 16-bit local identifier of a port in its subnet, assigned by the subnet manager (IBA 4.1.3). A port with
// an LMC (LID mask control) of n has 2^n LIDs, which differ only in the lowest n bits, the path bits. The LIDs from
// 0xc000 on are those of groups, and 0 is not a LID.
type LID uint32

// Base returns the LID without its path bits; lmc is 0 to 7.
func (l LID) Base(lmc uint8) LID { return l &^ (1<<lmc - 1) }

// IsUnicast reports whether l can be the LID of a port (IBA 4.1.3, table 3).
func (l LID) IsUnicast() bool { return l > 0 && l < 0xc000 }

func (l LID) String() string { return fmt.Sprintf("0x%04x", uint32(l)) }

// UDSource is the origin of a UD message, as the device reports it. [UDSource.Key] is what identifies it. The struct has
// no padding, so that maps hash it as a whole.
type UDSource struct {
	GID GID // source GID of the GRH; zero: the message has no GRH
	LID LID // InfiniBand: of the sender's port, without path bits; 0 on RoCE
	QPN QPN // of the sender's queue pair
}

// Key returns s as a key for comparison. On an InfiniBand port, the LID and the QPN identify a sender: the device of
// the sender sets them, and a message within the subnet need not have a GRH. On RoCE, the GID and the QPN do.
func (s UDSource) Key() UDSource {
	if s.LID != 0 {
		s.GID = GID{}
	}
	return s
}

// Port returns the key of the sender's port: Key without the QPN.
func (s UDSource) Port() UDSource {
	s.QPN = 0
	return s.Key()
}

// UDPath is a path of an InfiniBand subnet to a port or a multicast group: what an address handle needs of a path record
// (IBA 15.2.5.16) or of a membership (MCMemberRecord, 15.2.5.17). The zero value is no path.
type UDPath struct {
	DLID      LID    // of the port, or of the router on the way to it, with path bits; or the MLID
	SL        uint8  // 0-15
	Rate      uint8  // enum ibv_rate; 0: the port's rate
	HopLimit  uint8  // 0: there is no router on the way, and messages need no GRH
	Traffic   uint8  // traffic class of the GRH
	FlowLabel uint32 // 20 bits, of the GRH
}

// MTU is a path MTU in bytes of payload: one of 256, 512, 1024, 2048, 4096.
type MTU int

// MaxMTU is the largest MTU of IBA 1.4, table 43.
const MaxMTU MTU = 4096

// Batch is the maximum number of work requests, completions or datagrams that one
// call moves: large enough to amortize the call, small enough to stay in the L1
// cache and to hold a lock only for microseconds.
const Batch = 64

// MTUFor returns the largest MTU of at most n bytes, or 0 if n is below the
// smallest.
func MTUFor(n int) MTU {
	for m := MaxMTU; m >= 256; m /= 2 {
		if int(m) <= n {
			return m
		}
	}
	return 0
}

// Valid reports whether m is one of the five MTUs of IBA 1.4, table 43.
func (m MTU) Valid() bool { return m > 0 && MTUFor(int(m)) == m }

// GRHLen is the length of the area that a UD receive places before the payload: a
// global route header, or on RoCEv2 over IPv4 20 unspecified bytes and the IPv4
// header (IBA 11.4.1.2, A17.4.5.1). The area is always present, even if the packet
// has no GRH.
const GRHLen = 40
