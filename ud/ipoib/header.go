package ipoib

import (
	"encoding/binary"
	"fmt"

	"ipoibd/hca"
)

// HeaderLen is the length of the encapsulation header in bytes. The IPoIB MTU
// is the largest UD payload minus HeaderLen (RFC 4391 sections 6 and 7).
const HeaderLen = 4

// MaxMTU is the largest MTU that an interface can have on any port.
const MaxMTU = int(hca.MaxMTU) - HeaderLen

// EtherType is the protocol of a message.
type EtherType uint16

// The protocols of RFC 4391 section 6.
const (
	EtherTypeIPv4 EtherType = 0x0800
	EtherTypeARP  EtherType = 0x0806
	EtherTypeRARP EtherType = 0x8035
	EtherTypeIPv6 EtherType = 0x86dd
)

// Carried reports whether IPoIB carries the protocol.
func (t EtherType) Carried() bool {
	switch t {
	case EtherTypeIPv4, EtherTypeARP, EtherTypeRARP, EtherTypeIPv6:
		return true
	default:
		return false
	}
}

func (t EtherType) String() string { return fmt.Sprintf("0x%04x", uint16(t)) }

// errHeader is allocated once, because it may be returned for every frame of a
// flood.
var errHeader = fmt.Errorf("parse IPoIB header: %w", ErrTruncated)

// PutHeader writes the header of a message of type t into the first [HeaderLen]
// bytes of dst and panics if dst is shorter. The reserved bits are zero, as RFC
// 4391 section 6 requires of a sender.
func PutHeader(dst []byte, t EtherType) {
	binary.BigEndian.PutUint32(dst, uint32(t)<<16)
}

// ParseHeader splits a message into its type, for which [EtherType.Carried] may
// be false, and its payload, which aliases src. The reserved bits are ignored,
// as RFC 4391 section 6 requires of a receiver. Errors: ErrTruncated.
func ParseHeader(src []byte) (t EtherType, payload []byte, err error) {
	if len(src) < HeaderLen {
		return 0, nil, errHeader
	}
	return EtherType(binary.BigEndian.Uint16(src)), src[HeaderLen:], nil
}
