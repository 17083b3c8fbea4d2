package ipoib

import (
	"fmt"
	"net/netip"
)

// Length of the body and places of the IPv4 addresses, in bytes.
const (
	etherARPLen    = 28
	etherARPSender = 14
	etherARPTarget = 24
)

// EtherARP is an ARP body in the Ethernet form (RFC 826).
type EtherARP struct {
	Op  uint16
	SHA MAC        // sender's link-layer address
	SPA netip.Addr // sender's IPv4 address; 0.0.0.0 in a probe (RFC 5227)
	THA MAC        // target's; zero in a request
	TPA netip.Addr
}

// ParseEtherARP parses an ARP body in the Ethernet form. It accepts any
// operation and ignores trailing bytes, such as the padding of a short frame.
// Errors: ErrTruncated, ErrFormat.
func ParseEtherARP(body []byte) (EtherARP, error) {
	op, err := parseARPFixed(body, hardwareEther, len(MAC{}))
	if err != nil {
		return EtherARP{}, fmt.Errorf("parse Ethernet ARP: %w", err)
	}
	return EtherARP{
		Op:  op,
		SHA: MAC(body[8:]),
		SPA: netip.AddrFrom4([4]byte(body[etherARPSender:])),
		THA: MAC(body[18:]),
		TPA: netip.AddrFrom4([4]byte(body[etherARPTarget:])),
	}, nil
}

// Append appends the 28-byte body to dst. SPA and TPA must be IPv4 addresses.
func (a EtherARP) Append(dst []byte) []byte {
	dst = appendARPFixed(dst, hardwareEther, byte(len(MAC{})), a.Op)
	dst = append(dst, a.SHA[:]...)
	dst = appendIPv4(dst, a.SPA)
	dst = append(dst, a.THA[:]...)
	return appendIPv4(dst, a.TPA)
}
