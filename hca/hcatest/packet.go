package hcatest

import (
	"encoding/binary"
	"slices"
)

// packet describes an IPoIB message with TCP or UDP by its fields.
type packet struct {
	v6, udp bool
	routed  bool  // by IPv6 segment routing (RFC 8754)
	partial bool  // the checksum of TCP or UDP covers only the pseudo-header
	hops    uint8 // more than usual
	id      uint16
	seq     uint32
	flags   uint8
	options []byte // of TCP
	payload []byte
}

// Flags of TCP (RFC 9293, 3.1).
const (
	tcpFIN = 1 << 0
	tcpSYN = 1 << 1
	tcpPSH = 1 << 3
	tcpACK = 1 << 4
	tcpCWR = 1 << 7
)

// checksum is the Internet checksum, word by word (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := range b {
		sum += uint32(b[i]) << (8 * (1 - i%2))
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// message returns the message with all its checksums.
func (p *packet) message() []byte {
	be := binary.BigEndian
	proto, sumAt := uint8(6), 16
	l4 := []byte{0x12, 0x34, 0, 80}
	if p.udp {
		proto, sumAt = 17, 6
		l4 = append(be.AppendUint16(l4, uint16(8+len(p.payload))), 0, 0)
	} else {
		l4 = append(be.AppendUint32(l4, p.seq), 1, 2, 3, 4, uint8(20+len(p.options))/4<<4, p.flags)
		l4 = slices.Concat(l4, []byte{0x20, 0, 0, 0, 0, 0}, p.options)
	}
	l4 = append(l4, p.payload...)
	addrs, ip := []byte{10, 9, 0, 1, 10, 9, 0, 2}, []byte{0x08, 0, 0, 0}
	if p.v6 {
		addrs, ip = append(pattern(15), pattern(17)...), []byte{0x86, 0xdd, 0, 0}
		ip = append(be.AppendUint16(append(ip, 0x60, 2, 3, 4), uint16(len(l4))), proto, 9+p.hops)
	} else {
		ip = be.AppendUint16(append(ip, 0x45, 2), uint16(20+len(l4)))
		ip = append(be.AppendUint16(ip, p.id), 0x40, 0, 9+p.hops, proto, 0, 0)
	}
	ip = append(ip, addrs...)
	if p.routed {
		// The packet is on the way to the only segment before the final destination.
		via := pattern(23)[7:]
		ip[4+6] = 43
		be.PutUint16(ip[4+4:], uint16(40+len(l4)))
		ip = slices.Concat(ip[:len(ip)-16], via, []byte{proto, 4, 4, 1, 1, 0, 0, 0}, addrs[16:], via)
	}
	if !p.v6 {
		be.PutUint16(ip[4+10:], checksum(ip[4:]))
	}
	pseudo := append(be.AppendUint16(slices.Clone(addrs), uint16(len(l4))), 0, proto)
	if p.partial {
		be.PutUint16(l4[sumAt:], ^checksum(pseudo))
	} else if be.PutUint16(l4[sumAt:], checksum(slices.Concat(pseudo, l4))); p.udp && be.Uint16(l4[sumAt:]) == 0 {
		be.PutUint16(l4[sumAt:], 0xffff)
	}
	return append(ip, l4...)
}

// headerLen returns the length of what precedes the payload.
func (p *packet) headerLen() int {
	q := *p
	q.payload = nil
	return len(q.message())
}

// without returns the message with wrong checksums.
func (p *packet) without() []byte {
	b := p.message()
	at := 4 + 20
	if p.v6 {
		at = 4 + 40
	} else {
		b[4+10] ^= 0x5a
	}
	if p.udp {
		b[at+6] ^= 0x5a
	} else {
		b[at+16] ^= 0x5a
	}
	return b
}

// segments returns the messages into which a large send must cut the packet.
func (p *packet) segments(mss int) (out [][]byte) {
	for _, s := range p.cut(mss) {
		out = append(out, s.message())
	}
	return out
}

// cut cuts the packet as a large send must.
func (p *packet) cut(mss int) (out []packet) {
	for off := 0; off == 0 || off < len(p.payload); off += mss {
		s := *p
		s.payload = p.payload[off:min(off+mss, len(p.payload))]
		s.id += uint16(len(out))
		s.seq += uint32(off)
		if off > 0 {
			s.flags &^= tcpCWR
		}
		if off+mss < len(p.payload) {
			s.flags &^= tcpFIN | tcpPSH
		}
		out = append(out, s)
	}
	return out
}

// TCPHeader returns the header of a large send over IPv4, for tests of backends.
func TCPHeader() []byte {
	p := packet{flags: tcpACK, options: pattern(12)}
	return p.message()
}
