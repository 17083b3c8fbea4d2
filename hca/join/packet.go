package join

import (
	"bytes"
	"encoding/binary"

	"ipoibd/hca/checksum"
)

// Offsets in an IP packet (RFC 791 section 3.1; RFC 8200 section 3).
const (
	ipv4Len      = 20
	ipv4TotalLen = 2
	ipv4ID       = 4
	ipv4Frag     = 6
	ipv4TTL      = 8
	ipv4Proto    = 9
	ipv4Sum      = 10
	ipv4Addrs    = 12

	ipv6Len        = 40
	ipv6PayloadLen = 4
	ipv6Next       = 6
	ipv6Hops       = 7
	ipv6Addrs      = 8
)

// Values of fields.
const (
	ipv4Plain   = 0x45   // version 4, no options
	dontFrag    = 0x4000 // DF, of the flags and the fragment offset
	protoICMPv6 = 58
)

// The protocols that can be joined.
const (
	TCP = 6
	UDP = 17
)

// Offsets and values of the TCP header (RFC 9293 section 3.1, RFC 3168 section 6.1) and the
// UDP header (RFC 768).
const (
	tcpMinLen = 20
	tcpSeq    = 4
	tcpAck    = 8
	tcpOff    = 12
	tcpFlags  = 13
	tcpWindow = 14
	tcpSum    = 16
	tcpUrgent = 18

	flagPSH = 0x08
	flagACK = 0x10
	flagECE = 0x40

	udpHeaderLen = 8
	udpLength    = 4
	udpSum       = 6
)

// hashFactor is odd, so that multiplying by it loses no bit.
const hashFactor uint64 = 0x9e3779b97f4a7c15

// Kind is what may be done with a packet.
type Kind uint8

// Kinds.
const (
	Foreign  Kind = iota // not an IP packet: of no flow
	Opaque               // an IP packet whose ports are unknown
	Alone                // of a known flow, but not to be joined
	Joinable             // of a known flow, and may be joined
)

// verdict is what is known about the checksums of a packet.
type verdict uint8

const (
	unknown verdict = iota
	correct
	wrong
)

// Packet is what the headers of an IP packet say. Offsets count from its IP header.
type Packet struct {
	Kind      Kind
	IPv6      bool
	Proto     uint8 // TCP, UDP, others; 0: unknown, behind IPv6 extension headers
	push      bool  // TCP: PSH is set
	sums      verdict
	Transport int // where the TCP or UDP header begins
	Payload   int // where its payload begins
	End       int // of the packet

	ports uint32 // source and destination
	pair  uint64 // the IPv4 addresses, or a hash of the IPv6 addresses
}

// Parse reads the headers of a packet at the beginning of b, whose IP version the link-layer
// header names. The packet ends where b does. If b has at most padded bytes, padding may
// follow the packet. UDP is joinable only if udp is set.
func (p *Packet) Parse(b []byte, v6, udp bool, padded int) {
	*p = Packet{}
	switch {
	case len(b) < ipv4Len:
		return
	case v6:
		p.parseIPv6(b, padded)
	default:
		p.parseIPv4(b, padded)
	}
	switch {
	case p.Kind != Joinable:
	case p.toGroup(b):
		p.Kind = Opaque
	case p.Proto == TCP:
		p.parseTCP(b)
	case p.Proto == UDP:
		p.parseUDP(b, udp)
	default:
		p.Kind = Opaque
	}
}

func (p *Packet) parseIPv4(b []byte, padded int) {
	p.Kind, p.Proto, p.pair = Opaque, b[ipv4Proto], binary.BigEndian.Uint64(b[ipv4Addrs:])
	p.Transport = ipv4Len
	p.End = int(binary.BigEndian.Uint16(b[ipv4TotalLen:]))
	fragment := binary.BigEndian.Uint16(b[ipv4Frag:])&^dontFrag != 0
	if b[0] == ipv4Plain && !fragment && p.ends(b, padded) {
		p.Kind = Joinable
	}
}

func (p *Packet) parseIPv6(b []byte, padded int) {
	p.IPv6, p.Kind = true, Opaque
	if len(b) < ipv6Len || b[0]>>4 != 6 {
		return
	}
	p.Proto, p.Transport = b[ipv6Next], ipv6Len
	for i := ipv6Addrs; i < ipv6Len; i += 8 {
		p.pair = p.pair*hashFactor + binary.BigEndian.Uint64(b[i:])
	}
	p.End = ipv6Len + int(binary.BigEndian.Uint16(b[ipv6PayloadLen:]))
	switch p.Proto {
	case TCP, UDP, protoICMPv6:
	default:
		p.Proto = 0
	}
	if p.ends(b, padded) {
		p.Kind = Joinable
	}
}

// toGroup reports whether the destination is a group, or the limited broadcast.
func (p *Packet) toGroup(b []byte) bool {
	if p.IPv6 {
		return b[ipv6Addrs+16] == 0xff
	}
	return b[ipv4Addrs+4] >= 0xe0
}

// ends reports whether the packet ends with b, or is padded.
func (p *Packet) ends(b []byte, padded int) bool {
	return p.End == len(b) || p.End < len(b) && len(b) <= padded
}

func (p *Packet) parseTCP(b []byte) {
	if p.End < p.Transport+tcpMinLen {
		p.Kind = Opaque
		return
	}
	h := b[p.Transport:p.End]
	p.ports = binary.BigEndian.Uint32(h)
	size := int(h[tcpOff]>>4) * 4
	p.Payload = p.Transport + size
	p.push = h[tcpFlags]&flagPSH != 0
	if size < tcpMinLen || p.Payload >= p.End || h[tcpFlags]&^(flagPSH|flagECE) != flagACK {
		p.Kind = Alone
	}
}

func (p *Packet) parseUDP(b []byte, join bool) {
	if p.End < p.Transport+udpHeaderLen {
		p.Kind = Opaque
		return
	}
	h := b[p.Transport:p.End]
	p.ports = binary.BigEndian.Uint32(h)
	p.Payload = p.Transport + udpHeaderLen
	unsummed := binary.BigEndian.Uint16(h[udpSum:]) == 0
	if !join || unsummed || int(binary.BigEndian.Uint16(h[udpLength:])) != len(h) || len(h) == udpHeaderLen {
		p.Kind = Alone
	}
}

// Size returns the length of the payload.
func (p *Packet) Size() int { return p.End - p.Payload }

// CsumOffset returns where the checksum is in the header of TCP or UDP.
func (p *Packet) CsumOffset() int {
	if p.Proto == UDP {
		return udpSum
	}
	return tcpSum
}

// addrs returns both addresses.
func (p *Packet) addrs(b []byte) []byte {
	if p.IPv6 {
		return b[ipv6Addrs:ipv6Len]
	}
	return b[ipv4Addrs:ipv4Len]
}

// pseudo returns the sum of the pseudo-header for a packet of the same flow that ends at end.
func (p *Packet) pseudo(b []byte, end int) uint16 {
	return checksum.Pseudo(p.addrs(b), p.Proto, end-p.Transport)
}

// SetVerified records that the device has verified the checksums of IPv4 and of TCP or UDP.
func (p *Packet) SetVerified() { p.sums = correct }

// intact reports whether the checksums of IPv4 and of TCP or UDP are correct. It computes them
// at most once, and not at all after SetVerified.
func (p *Packet) intact(b []byte) bool {
	if p.sums == unknown {
		p.sums = wrong
		if p.verify(b) {
			p.sums = correct
		}
	}
	return p.sums == correct
}

// verify computes the checksums. Cutting writes zero as 0 in IPv4 and TCP, and as 0xffff in
// UDP. The other form of zero does not count as correct.
func (p *Packet) verify(b []byte) bool {
	if !p.IPv6 && (checksum.Sum(b[:ipv4Len], 0) != 0xffff || binary.BigEndian.Uint16(b[ipv4Sum:]) == 0xffff) {
		return false
	}
	if p.Proto == TCP && binary.BigEndian.Uint16(b[p.Transport+tcpSum:]) == 0xffff {
		return false
	}
	return checksum.Sum(b[p.Transport:p.End], p.pseudo(b, p.End)) == 0xffff
}

// SameFlow reports whether two packets, whose ports are known, belong to one flow.
func (p *Packet) SameFlow(q *Packet, b, c []byte) bool {
	return p.pair == q.pair && p.ports == q.ports && p.Proto == q.Proto && p.IPv6 == q.IPv6 &&
		(!p.IPv6 || bytes.Equal(p.addrs(b), q.addrs(c)))
}

// MayShareFlow reports whether p, whose ports are unknown, might belong to the flow of q.
func (p *Packet) MayShareFlow(q *Packet) bool {
	return q.pair == p.pair && (p.Proto == 0 || p.Proto == q.Proto)
}
