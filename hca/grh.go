package hca

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ErrGRH means that a GRH area has neither of the two layouts. It wraps
// ErrInvalid.
var ErrGRH = fmt.Errorf("parse GRH: %w", ErrInvalid)

// Fields of the two layouts of a GRH area (IBA 8.3, RFC 8200, RFC 791).
const (
	grhSGID = 8
	grhDGID = 24

	grhIPv4     = 20 // where the IPv4 header begins
	ipv4VerIHL  = 0x45
	ipv4Proto   = 9
	ipv4UDP     = 17
	ipv4SrcAddr = 12
	ipv4DstAddr = 16
)

// ParseGRH returns the GIDs in the first GRHLen bytes of a UD receive. These are a
// GRH or an IPv6 header, which have the same layout, or an IPv4 header behind 20
// unspecified bytes (A17.4.5.1); network says which, see [WC.Network].
//
// If network is unknown, the header decides, as in ib_get_rdma_header_version of
// drivers/infiniband/core/verbs.c: an area that begins like an IPv6 header counts as
// IPv4 if a complete IPv4 header with a correct checksum follows. A sender can choose
// IPv6 addresses that look like one. Otherwise the checksum does not matter, because the
// device has verified it: rxe loops a message back to its own port before it fills in
// the checksum, so the field has what was in the memory before.
//
// Errors: ErrGRH. ParseGRH does not allocate.
func ParseGRH(src []byte, network NetworkType) (sgid, dgid GID, err error) {
	if len(src) < GRHLen {
		return GID{}, GID{}, ErrGRH
	}
	src = src[:GRHLen]
	ip, isIPv6 := src[grhIPv4:], src[0]>>4 == 6
	isIPv4 := ip[0] == ipv4VerIHL && ip[ipv4Proto] == ipv4UDP // without options
	if isIPv4 && isIPv6 && network == NetworkUnknown {
		isIPv4 = IPv4Checksum(ip) == 0
	}
	switch {
	case isIPv4 && network != NetworkIPv6:
		sgid = GIDFromAddr(netip.AddrFrom4([4]byte(ip[ipv4SrcAddr:])))
		dgid = GIDFromAddr(netip.AddrFrom4([4]byte(ip[ipv4DstAddr:])))
	case isIPv6 && network != NetworkIPv4:
		sgid, dgid = GID(src[grhSGID:grhDGID]), GID(src[grhDGID:])
	default:
		return GID{}, GID{}, ErrGRH
	}
	return sgid, dgid, nil
}

// IPv4Checksum returns the Internet checksum (RFC 1071) of an IPv4 header. If the
// checksum field is zero, the result is the value to store there; if the field is
// correct, the result is zero. The length of the header must be even.
func IPv4Checksum(header []byte) uint16 {
	var sum uint32
	for ; len(header) >= 2; header = header[2:] {
		sum += uint32(binary.BigEndian.Uint16(header))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	return ^uint16(sum)
}
