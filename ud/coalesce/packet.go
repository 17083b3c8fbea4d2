package coalesce

import (
	"bytes"
	"encoding/binary"

	"ipoibd/hca/checksum"
	"ipoibd/ud/vnet"
)

// Offsets in a frame with its virtio header in front (IEEE 802.3; RFC 791 section 3.1; RFC
// 8200 section 3).
const (
	etherAt = vnet.HeaderLen
	typeAt  = etherAt + 12
	ipAt    = etherAt + 14

	ipv4Len   = 20
	ipv4ID    = ipAt + 4
	ipv4Frag  = ipAt + 6
	ipv4Sum   = ipAt + 10
	ipv4Addrs = ipAt + 12

	ipv6Len   = 40
	ipv6Addrs = ipAt + 8
)

// Values of fields.
const (
	typeIPv4    = 0x0800
	typeIPv6    = 0x86dd
	ipv4Plain   = 0x45   // version 4, no options
	dontFrag    = 0x4000 // DF, of the flags and the fragment offset
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// etherMinPayload is the length up to which Ethernet pads a packet (IEEE 802.3, 4.4.2).
const etherMinPayload = 46

// Offsets and values of the TCP header (RFC 9293 section 3.1, RFC 3168 section 6.1) and the
// UDP header (RFC 768).
const (
	tcpMinLen = 20
	tcpSeq    = 4
	tcpAck    = 8
	tcpOff    = 12
	tcpFlags  = 13
	tcpWindow = 14
	tcpUrgent = 18

	flagPSH = 0x08
	flagACK = 0x10
	flagECE = 0x40

	udpHeaderLen = 8
	udpLength    = 4
)

// hashFactor is odd, so that multiplying by it loses no bit.
const hashFactor uint64 = 0x9e3779b97f4a7c15

// kind determines what Join may do with a frame.
type kind uint8

const (
	foreign kind = iota // not a unicast IP packet: of no flow
	opaque              // an IP packet whose ports are unknown
	alone               // of a known flow, but not to be joined
	joinable
)

// verdict is the state of the verification of a packet's checksums.
type verdict uint8

const (
	unknown verdict = iota
	correct
	wrong
)

// packet is the parsed form of a frame. Offsets count from the virtio header.
type packet struct {
	kind      kind
	ipv6      bool
	proto     uint8 // 0: unknown, behind IPv6 extension headers
	sum       verdict
	ports     uint32 // both
	transport int    // where the TCP or UDP header begins
	payload   int    // where its payload begins
	end       int    // of the IP packet
	pair      uint64 // the IPv4 addresses, or a hash of the IPv6 addresses
}

// parse reads the headers of a frame.
func (p *packet) parse(frame []byte, udp bool) {
	*p = packet{}
	if len(frame) < ipAt+ipv4Len || frame[etherAt]&1 != 0 {
		return
	}
	switch binary.BigEndian.Uint16(frame[typeAt:]) {
	case typeIPv4:
		p.parseIPv4(frame)
	case typeIPv6:
		p.parseIPv6(frame)
	}
	switch {
	case p.kind != joinable:
	case vnet.Flags(frame[0])&^vnet.DataValid != 0 || vnet.GSOType(frame[1]) != vnet.GSONone:
		p.kind = opaque // already large, or without checksum
	case p.proto == protoTCP:
		p.parseTCP(frame)
	case p.proto == protoUDP:
		p.parseUDP(frame, udp)
	default:
		p.kind = opaque
	}
}

func (p *packet) parseIPv4(frame []byte) {
	p.kind, p.proto, p.pair = opaque, frame[ipAt+9], binary.BigEndian.Uint64(frame[ipv4Addrs:])
	p.transport = ipAt + ipv4Len
	p.end = ipAt + int(binary.BigEndian.Uint16(frame[ipAt+2:]))
	fragment := binary.BigEndian.Uint16(frame[ipv4Frag:])&^dontFrag != 0
	if frame[ipAt] == ipv4Plain && !fragment && p.ends(frame) {
		p.kind = joinable
	}
}

func (p *packet) parseIPv6(frame []byte) {
	p.ipv6, p.kind = true, opaque
	if len(frame) < ipAt+ipv6Len || frame[ipAt]>>4 != 6 {
		return
	}
	p.proto, p.transport = frame[ipAt+6], ipAt+ipv6Len
	for i := ipv6Addrs; i < p.transport; i += 8 {
		p.pair = p.pair*hashFactor + binary.BigEndian.Uint64(frame[i:])
	}
	p.end = p.transport + int(binary.BigEndian.Uint16(frame[ipAt+4:]))
	switch p.proto {
	case protoTCP, protoUDP, protoICMPv6:
	default:
		p.proto = 0
	}
	if p.ends(frame) {
		p.kind = joinable
	}
}

// ends reports whether the packet ends with its frame, or is padded to the shortest length
// of Ethernet.
func (p *packet) ends(frame []byte) bool {
	return p.end == len(frame) || p.end < len(frame) && len(frame) <= ipAt+etherMinPayload
}

func (p *packet) parseTCP(frame []byte) {
	if p.end < p.transport+tcpMinLen {
		p.kind = opaque
		return
	}
	h := frame[p.transport:p.end]
	p.ports = binary.BigEndian.Uint32(h)
	size := int(h[tcpOff]>>4) * 4
	p.payload = p.transport + size
	if size < tcpMinLen || p.payload >= p.end || h[tcpFlags]&^(flagPSH|flagECE) != flagACK {
		p.kind = alone
	}
}

func (p *packet) parseUDP(frame []byte, join bool) {
	if p.end < p.transport+udpHeaderLen {
		p.kind = opaque
		return
	}
	h := frame[p.transport:p.end]
	p.ports = binary.BigEndian.Uint32(h)
	p.payload = p.transport + udpHeaderLen
	unsummed := binary.BigEndian.Uint16(h[vnet.CsumOffsetUDP:]) == 0
	if !join || unsummed || int(binary.BigEndian.Uint16(h[udpLength:])) != len(h) || len(h) == udpHeaderLen {
		p.kind = alone
	}
}

// size returns the length of the payload.
func (p *packet) size() int { return p.end - p.payload }

// addrs returns both addresses.
func (p *packet) addrs(frame []byte) []byte {
	if p.ipv6 {
		return frame[ipv6Addrs:p.transport]
	}
	return frame[ipv4Addrs:p.transport]
}

// verified reports whether the checksums of IPv4 and of TCP or UDP are correct. It trusts a
// device that has verified them, and remembers the result.
func (p *packet) verified(frame []byte) bool {
	if p.sum == unknown {
		p.sum = wrong
		if vnet.Flags(frame[0]) == vnet.DataValid || p.sums(frame) {
			p.sum = correct
		}
	}
	return p.sum == correct
}

// sums computes the checksums.
func (p *packet) sums(frame []byte) bool {
	if !p.ipv6 && checksum.Sum(frame[ipAt:p.transport], 0) != 0xffff {
		return false
	}
	pseudo := checksum.Pseudo(p.addrs(frame), p.proto, p.end-p.transport)
	return checksum.Sum(frame[p.transport:p.end], pseudo) == 0xffff
}

// sameFlow reports whether two packets, whose ports are known, belong to one flow.
func sameFlow(p, q *packet, pFrame, qFrame []byte) bool {
	return p.pair == q.pair && p.ports == q.ports && p.proto == q.proto && p.ipv6 == q.ipv6 &&
		(!p.ipv6 || bytes.Equal(p.addrs(pFrame), q.addrs(qFrame)))
}
