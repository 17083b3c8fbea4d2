package ipoib

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ARP operations (RFC 826).
const (
	ARPRequest uint16 = 1
	ARPReply   uint16 = 2
)

// Hardware types (IANA, "ARP Parameters").
const (
	hardwareEther = 1
	hardwareIB    = 32 // RFC 4391 section 9.2
)

// Layout of an ARP body (RFC 826): a fixed part, then sender and target, each a
// hardware address followed by an IPv4 address.
//
//	[hardware type 2][protocol type 2][hlen 1][plen 1][operation 2]
const arpFixedLen = 8

// ARP is an ARP body in the IPoIB form (RFC 4391 section 9.2).
type ARP struct {
	Op  uint16
	SHA Addr       // sender's link-layer address
	SPA netip.Addr // sender's IPv4 address; 0.0.0.0 in a probe (RFC 5227)
	THA Addr       // target's; zero in a request
	TPA netip.Addr
}

// ParseARP parses an ARP body in the IPoIB form. It accepts any operation and
// ignores trailing bytes. Errors: ErrTruncated, ErrFormat.
func ParseARP(body []byte) (ARP, error) {
	op, err := parseARPFixed(body, hardwareIB, AddrLen)
	if err != nil {
		return ARP{}, fmt.Errorf("parse IPoIB ARP: %w", err)
	}
	return ARP{
		Op:  op,
		SHA: Addr(body[8:]),
		SPA: netip.AddrFrom4([4]byte(body[28:])),
		THA: Addr(body[32:]),
		TPA: netip.AddrFrom4([4]byte(body[52:])),
	}, nil
}

// Append appends the 56-byte body to dst. SPA and TPA must be IPv4 addresses.
func (a ARP) Append(dst []byte) []byte {
	dst = appendARPFixed(dst, hardwareIB, AddrLen, a.Op)
	dst = append(dst, a.SHA[:]...)
	dst = appendIPv4(dst, a.SPA)
	dst = append(dst, a.THA[:]...)
	return appendIPv4(dst, a.TPA)
}

// parseARPFixed checks the fixed part and the length, and returns the operation.
func parseARPFixed(body []byte, hardware uint16, hlen int) (op uint16, err error) {
	switch {
	case len(body) < arpFixedLen:
		return 0, ErrTruncated
	case binary.BigEndian.Uint16(body) != hardware,
		EtherType(binary.BigEndian.Uint16(body[2:])) != EtherTypeIPv4,
		int(body[4]) != hlen, body[5] != 4:
		return 0, ErrFormat
	case len(body) < arpFixedLen+2*(hlen+4):
		return 0, ErrTruncated
	}
	return binary.BigEndian.Uint16(body[6:]), nil
}

func appendARPFixed(dst []byte, hardware uint16, hlen byte, op uint16) []byte {
	dst = binary.BigEndian.AppendUint16(dst, hardware)
	dst = binary.BigEndian.AppendUint16(dst, uint16(EtherTypeIPv4))
	dst = append(dst, hlen, 4)
	return binary.BigEndian.AppendUint16(dst, op)
}

func appendIPv4(dst []byte, ip netip.Addr) []byte {
	b := ip.As4()
	return append(dst, b[:]...)
}
