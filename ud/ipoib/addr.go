package ipoib

import (
	"encoding/binary"
	"fmt"

	"ipoibd/hca"
)

// AddrLen is the length of an IPoIB link-layer address in bytes.
const AddrLen = 20

// Addr is an IPoIB link-layer address (RFC 4391 section 9.1.1).
//
//	[flags 1][QPN 3][GID 16]
//
// The flags are zero on send and ignored on receive. Connected mode uses them
// (RFC 4755); zero means UD mode.
type Addr [AddrLen]byte

// NewAddr returns the address of queue pair qpn at gid, with flags zero. Bits
// of qpn above the low 24 are dropped.
func NewAddr(qpn hca.QPN, gid hca.GID) (a Addr) {
	binary.BigEndian.PutUint32(a[:4], uint32(qpn&hca.QPNMask))
	copy(a[4:], gid[:])
	return a
}

// QPN returns the queue pair number.
func (a Addr) QPN() hca.QPN { return hca.QPN(binary.BigEndian.Uint32(a[:4])) & hca.QPNMask }

// GID returns the port's GID.
func (a Addr) GID() hca.GID { return hca.GID(a[4:]) }

// String returns the notation of "ip link": 20 bytes in hexadecimal, separated
// by colons.
func (a Addr) String() string {
	s := fmt.Appendf(nil, "% x", a[:])
	for i := 2; i < len(s); i += 3 {
		s[i] = ':'
	}
	return string(s)
}

// MarshalText makes an Addr appear as [Addr.String] in JSON.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }
