package ipoib

import (
	"encoding/binary"
	"fmt"
)

// Mapper knows both addresses of a node. The second result is false for an
// address that it does not know.
type Mapper interface {
	// ToAddr maps an address that the host uses to one of the fabric.
	ToAddr(MAC) (Addr, bool)
	// ToMAC maps an address of the fabric, flags as received, to one that the
	// host uses.
	ToMAC(Addr) (MAC, bool)
}

// maxIPv6Len is the longest IPv6 packet in bytes that its length field can tell.
const maxIPv6Len = ipv6HeaderLen + 0xffff

// TranslateND appends to dst the IPv6 packet with each link-layer address option
// turned from one form into the other, and IPv6 payload length and checksum made
// anew. Other options pass through unchanged; only the Redirected Header of a
// Redirect is cut, or left out, where the packet would exceed limit bytes (RFC
// 4861 section 4.6.3). Bytes behind the IPv6 payload are dropped. dst must not
// overlap packet. On an error dst is returned as it was.
//
// Errors: those of [ParseND], ErrUnmapped, ErrTooLong.
func TranslateND(dst, packet []byte, from, to Form, limit int, m Mapper) ([]byte, error) {
	nd, packet, err := parseND(packet, from)
	if err != nil {
		return dst, fmt.Errorf("translate ND: %w", err)
	}
	limit = min(limit, maxIPv6Len)
	out, err := relink{from, to, m}.append(dst, packet, nd.translatedLen(packet, from, to)-limit)
	if err != nil {
		return dst, fmt.Errorf("translate ND: %w", err)
	}
	if len(out)-len(dst) > limit {
		return dst, fmt.Errorf("translate ND: %w", ErrTooLong)
	}
	finishND(out[len(dst):])
	return out, nil
}

// translatedLen returns the length of the translated packet with nothing cut.
func (nd ND) translatedLen(packet []byte, from, to Form) int {
	return len(packet) + nd.links*(to.optionLen()-from.optionLen())
}

// finishND fills in the lengths and checksum of a message that is complete.
func finishND(packet []byte) {
	binary.BigEndian.PutUint16(packet[ipv6PayloadLen:], uint16(len(packet)-ipv6HeaderLen))
	putICMP6Checksum(packet)
}

// relink turns link-layer address options into another form.
type relink struct {
	from, to Form
	m        Mapper
}

// append appends a packet that parseND has passed, its options relinked, and
// excess bytes cut from the Redirected Header where there is one.
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

// appendLink appends a link-layer address option in the form to.
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

// appendLinkOption appends an option in the IPoIB form: length 3, two reserved
// bytes of zero, the address (RFC 4391 section 9.3).
func appendLinkOption(dst []byte, optionType uint8, addr Addr) []byte {
	dst = append(dst, optionType, 3, 0, 0)
	return append(dst, addr[:]...)
}

// minRedirected is the shortest useful Redirected Header in bytes: its own 8,
// the IPv6 header, and the ports behind it.
const minRedirected = 8 + ipv6HeaderLen + 8

// appendRedirected appends a Redirected Header shortened by at least excess
// bytes, or nothing where too little of it would be left to serve.
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
