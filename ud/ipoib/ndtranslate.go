package ipoib

import (
	"encoding/binary"
	"fmt"
)

// Mapper maps the two addresses of a node to each other. The second result is
// false for an unknown address.
type Mapper interface {
	// ToAddr maps an Ethernet address used by the host to the node's address on
	// the fabric.
	ToAddr(MAC) (Addr, bool)
	// ToMAC maps an address on the fabric, with its flags as received, to the
	// Ethernet address used by the host.
	ToMAC(Addr) (MAC, bool)
}

// maxIPv6Len is the longest IPv6 packet in bytes that the length field can
// express.
const maxIPv6Len = ipv6HeaderLen + 0xffff

// TranslateND appends the IPv6 packet to dst, with each link-layer address
// option converted from one form to the other and with the IPv6 payload length
// and checksum recomputed. Other options pass through unchanged, except that the
// Redirected Header of a Redirect is shortened or left out if the packet would
// exceed limit bytes (RFC 4861 section 4.6.3). Bytes behind the IPv6 payload are
// dropped. dst must not overlap packet. On error TranslateND returns dst
// unchanged.
//
// Errors: as [ParseND], ErrUnmapped, ErrTooLong.
func TranslateND(dst, packet []byte, from, to Form, limit int, m Mapper) ([]byte, error) {
	nd, packet, err := parseND(packet, from)
	if err != nil {
		return dst, fmt.Errorf("translate ND: %w", err)
	}
	limit = min(limit, maxIPv6Len)
	translated := len(packet) + nd.links*(to.optionLen()-from.optionLen()) // with nothing cut
	out, err := relink{from, to, m}.append(dst, packet, translated-limit)
	if err != nil {
		return dst, fmt.Errorf("translate ND: %w", err)
	}
	if len(out)-len(dst) > limit {
		return dst, fmt.Errorf("translate ND: %w", ErrTooLong)
	}
	finishND(out[len(dst):])
	return out, nil
}

// finishND fills in the length and checksum of an otherwise complete message.
func finishND(packet []byte) {
	binary.BigEndian.PutUint16(packet[ipv6PayloadLen:], uint16(len(packet)-ipv6HeaderLen))
	checksum := packet[ndChecksum : ndChecksum+2]
	clear(checksum)
	binary.BigEndian.PutUint16(checksum, icmp6Checksum(packet))
}

// relink converts link-layer address options to another form.
type relink struct {
	from, to Form
	m        Mapper
}

// append appends a packet that parseND has accepted, with its link-layer
// address options converted and with excess bytes cut from the Redirected
// Header, if there is one.
func (r relink) append(dst, packet []byte, excess int) ([]byte, error) {
	options := ndOptions(packet)
	dst = append(dst, packet[:len(packet)-len(options)]...)
	for len(options) > 0 {
		option, rest, err := cutOption(options)
		if err != nil {
			return nil, err
		}
		switch {
		case isLinkOption(option):
			if dst, err = r.appendLink(dst, option); err != nil {
				return nil, err
			}
		case option[0] == optionRedirectedHead && excess > 0:
			before := len(dst)
			dst = appendRedirected(dst, option, excess)
			excess -= len(option) - (len(dst) - before)
		default:
			dst = append(dst, option...)
		}
		options = rest
	}
	return dst, nil
}

// appendLink appends a link-layer address option, converted to the form r.to.
func (r relink) appendLink(dst, option []byte) ([]byte, error) {
	switch {
	case r.from == r.to:
		return append(dst, option...), nil
	case r.to == FormIPoIB:
		addr, ok := r.m.ToAddr(MAC(option[r.from.addrOffset():]))
		if !ok {
			return nil, ErrUnmapped
		}
		return appendLinkOption(dst, option[0], addr), nil
	}
	mac, ok := r.m.ToMAC(Addr(option[r.from.addrOffset():]))
	if !ok {
		return nil, ErrUnmapped
	}
	dst = append(dst, option[0], 1)
	return append(dst, mac[:]...), nil
}

// appendLinkOption appends an option in the IPoIB form: type, length 3, two
// reserved zero bytes, and the address (RFC 4391 section 9.3).
func appendLinkOption(dst []byte, optionType uint8, addr Addr) []byte {
	dst = append(dst, optionType, 3, 0, 0)
	return append(dst, addr[:]...)
}

// minRedirected is the length of the shortest useful Redirected Header in
// bytes: its own 8, the IPv6 header, and the ports behind it.
const minRedirected = 8 + ipv6HeaderLen + 8

// appendRedirected appends a Redirected Header shortened by at least excess
// bytes, or nothing if the rest would be too short to be useful.
func appendRedirected(dst, option []byte, excess int) []byte {
	cut := (excess + optionUnit - 1) / optionUnit * optionUnit
	n := len(option) - cut
	if n < minRedirected {
		return dst
	}
	start := len(dst)
	dst = append(dst, option[:n]...)
	dst[start+1] = byte(n / optionUnit)
	return dst
}
