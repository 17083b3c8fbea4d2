package ipoib

import (
	"fmt"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// Broadcast is the Ethernet broadcast address.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// IsMulticast reports whether m is a group address, which includes broadcast.
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// IsBroadcast reports whether m is [Broadcast].
func (m MAC) IsBroadcast() bool { return m == Broadcast }

// IsZero reports whether m is the all-zero address, which belongs to no
// station.
func (m MAC) IsZero() bool { return m == MAC{} }

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText makes a MAC appear as [MAC.String] in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the form of [MAC.String].
func (m *MAC) UnmarshalText(b []byte) error {
	var x MAC
	_, err := fmt.Sscanf(string(b), "%02x:%02x:%02x:%02x:%02x:%02x", &x[0], &x[1], &x[2], &x[3], &x[4], &x[5])
	if err != nil || x.String() != string(b) {
		return fmt.Errorf("%q is no MAC such as %s", b, Broadcast)
	}
	*m = x
	return nil
}

// LinkLocal returns the link-local address that an interface derives from its MAC (RFC 2464 section 5).
func (m MAC) LinkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5],
	})
}
