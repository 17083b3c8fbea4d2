package segment

import (
	"encoding/binary"
	"errors"

	"ipoibd/hca/checksum"
)

// MaxHeader bounds the headers of a frame in bytes, including those that precede the IP header.
// An IPoIB header of 4 bytes and the longest headers of TCP (60) fit, behind the longest ones of
// IPv4 (60), or behind an IPv6 header (40) with 152 bytes of extension headers, for example a
// segment routing header with nine segments (RFC 8754).
const MaxHeader = 256

// Reasons why headers are refused.
var (
	ErrShort    = errors.New("segment: headers are truncated")
	ErrLong     = errors.New("segment: headers or segments are too long")
	ErrNotIP    = errors.New("segment: not IP")
	ErrProtocol = errors.New("segment: neither TCP nor UDP")
	ErrFragment = errors.New("segment: the frame is a fragment")
	ErrLength   = errors.New("segment: lengths in the headers disagree")
	ErrFlags    = errors.New("segment: SYN or RST in a large frame")
	ErrSize     = errors.New("segment: the segment size is not positive")
)

// Offsets and constants of the headers (RFC 791, 8200, 9293, 768).
const (
	ipv4Len     = 20
	ipv4Total   = 2
	ipv4ID      = 4
	ipv4Frag    = 6
	ipv4Proto   = 9
	ipv4Sum     = 10
	ipv4Src     = 12
	ipv4NotFrag = 0x3fff // more fragments, and the offset

	ipv6Len     = 40
	ipv6Option  = 8 // unit of an extension header's length
	ipv6Payload = 4
	ipv6Next    = 6
	ipv6Src     = 8

	protoHopByHop = 0
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoDestOpts = 60

	tcpLen    = 20
	tcpSeq    = 4
	tcpOffset = 12
	tcpFlags  = 13
	tcpSum    = 16
	tcpUrgent = 18

	udpLen    = 8
	udpLength = 4
	udpSum    = 6

	maxLength = 1<<16 - 1 // in a header
)

// Flags of TCP.
const (
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagPSH = 1 << 3
	flagURG = 1 << 5
	flagCWR = 1 << 7
)

// proto is the protocol whose headers a plan completes in addition to IP headers.
type proto uint8

const (
	none proto = iota
	tcp
	udp
)

// Plan describes how to cut one frame. Cut or Whole must succeed before any other method is
// called.
type Plan struct {
	proto   proto
	v6      bool
	routed  bool   // behind a routing header
	ip, l4  uint16 // offsets of the IP header and of what follows it
	length  uint16 // of all headers
	flags   uint8  // of TCP
	urgent  uint16
	id      uint16
	seq     uint32
	ipSum   uint64 // of the IPv4 header without the fields that Put sets
	l4Sum   uint64 // of pseudo header and TCP or UDP header without the fields that Put sets
	payload int
	mss     int
	n       int
	headers [MaxHeader]byte // with zeros in the fields that are summed for each segment
}

// Cut plans the segments of a frame: headers, followed by payload bytes. headers are all
// bytes in front of the payload, and the IP header is at offset ip. Every segment but the
// last has mss bytes of payload. A frame without payload is one segment. Behind a routing
// header, the checksum field of TCP or UDP must hold the sum of the frame's pseudo-header. Cut
// copies the headers.
func (p *Plan) Cut(headers []byte, ip, payload, mss int) error {
	switch {
	case mss < 1 || payload < 0:
		return ErrSize
	case len(headers) > MaxHeader:
		return ErrLong
	}
	next, err := p.locateIP(headers, ip)
	if err != nil {
		return err
	}
	if err := p.locateL4(headers, next); err != nil {
		return err
	}
	if int(p.length) != len(headers) {
		return ErrLength
	}
	p.payload, p.mss, p.n = payload, mss, max(1, (payload-1)/mss+1)
	switch first := min(mss, payload); {
	case !p.v6 && len(headers)-ip+first > maxLength, p.v6 && len(headers)-ip-ipv6Len+first > maxLength:
		return ErrLong
	case p.proto == tcp && p.n > 1 && headers[p.l4+tcpFlags]&(flagSYN|flagRST) != 0:
		return ErrFlags
	}
	p.prepare(headers)
	return nil
}

// Whole plans a message that lacks only its checksums, as one segment. head is its beginning,
// at least MaxHeader bytes or all of it, and size its length. The IP header is at offset ip. In
// a fragment, another protocol, or a message whose lengths disagree, only the checksum of the
// IPv4 header is computed. Errors: ErrNotIP, ErrShort, ErrLong, ErrLength, if there is no
// complete IP header.
func (p *Plan) Whole(head []byte, ip, size int) error {
	next, err := p.locateIP(head, ip)
	if err != nil && !errors.Is(err, ErrFragment) {
		return err
	}
	p.payload, p.n = 0, 1
	if err != nil || p.routed || p.locateL4(head, next) != nil || !p.agree(head, size) {
		p.proto, p.length, p.payload, p.routed = none, p.l4, 0, false
	}
	p.mss = max(1, p.payload)
	p.prepare(head[:p.length])
	return nil
}

// agree reports whether the lengths in the headers of a message are possible, and sets the
// length of the payload.
func (p *Plan) agree(head []byte, size int) bool {
	end := int(p.ip) + int(binary.BigEndian.Uint16(head[p.ip+ipv4Total:]))
	if p.v6 {
		end = int(p.ip) + ipv6Len + int(binary.BigEndian.Uint16(head[p.ip+ipv6Payload:]))
	}
	p.payload = end - int(p.length)
	return p.payload >= 0 && end <= size &&
		(p.proto != udp || int(binary.BigEndian.Uint16(head[p.l4+udpLength:])) == end-int(p.l4))
}

// locateIP finds the IP header and returns the protocol after it. With ErrFragment the plan
// describes that header.
func (p *Plan) locateIP(b []byte, ip int) (next uint8, err error) {
	if ip < 0 || len(b) < ip+ipv4Len {
		return 0, ErrShort
	}
	p.proto, p.ip, p.v6, p.routed = none, uint16(ip), b[ip]>>4 == 6, false
	if p.v6 {
		return p.locateIPv6(b)
	}
	n := int(b[ip]&0x0f) * 4
	switch {
	case b[ip]>>4 != 4:
		return 0, ErrNotIP
	case n < ipv4Len:
		return 0, ErrLength
	case len(b) < ip+n:
		return 0, ErrShort
	case ip+n > MaxHeader:
		return 0, ErrLong
	}
	p.l4 = uint16(ip + n)
	if binary.BigEndian.Uint16(b[ip+ipv4Frag:])&ipv4NotFrag != 0 {
		return 0, ErrFragment
	}
	return b[ip+ipv4Proto], nil
}

// locateIPv6 also skips extension headers.
func (p *Plan) locateIPv6(b []byte) (next uint8, err error) {
	at := int(p.ip) + ipv6Len
	if len(b) < at {
		return 0, ErrShort
	}
	for next = b[p.ip+ipv6Next]; next == protoHopByHop || next == protoDestOpts || next == protoRouting; {
		if len(b) < at+ipv6Option {
			return 0, ErrShort
		}
		p.routed = p.routed || next == protoRouting
		size := (int(b[at+1]) + 1) * ipv6Option
		next, at = b[at], at+size
		switch {
		case at > MaxHeader:
			return 0, ErrLong
		case len(b) < at:
			return 0, ErrShort
		}
	}
	p.l4 = uint16(at)
	return next, nil
}

// locateL4 finds the end of the header of TCP or UDP.
func (p *Plan) locateL4(b []byte, next uint8) error {
	b, n := b[p.l4:], udpLen
	switch next {
	case protoTCP:
		if len(b) < tcpLen {
			return ErrShort
		}
		p.proto, n = tcp, int(b[tcpOffset]>>4)*4
		if n < tcpLen {
			return ErrLength
		}
	case protoUDP:
		p.proto = udp
	default:
		return ErrProtocol
	}
	switch {
	case len(b) < n:
		return ErrShort
	case int(p.l4)+n > MaxHeader:
		return ErrLong
	}
	p.length = p.l4 + uint16(n)
	return nil
}

// prepare copies the headers and sums the fields that all segments share.
func (p *Plan) prepare(headers []byte) {
	h := p.headers[:copy(p.headers[:], headers)]
	ip, l4 := h[p.ip:p.l4], h[p.l4:]
	switch {
	case p.routed: // the pseudo-header has the final destination (RFC 8200, 8.1)
		at, number := tcpSum, protoTCP
		if p.proto == udp {
			at, number = udpSum, protoUDP
		}
		rest := checksum.Fold(uint64(number + len(l4) + p.payload))
		p.l4Sum = uint64(binary.BigEndian.Uint16(l4[at:])) + uint64(^rest)
	case p.v6:
		p.l4Sum = uint64(checksum.Sum(ip[ipv6Src:ipv6Len], 0))
	default:
		p.l4Sum = uint64(checksum.Sum(ip[ipv4Src:ipv4Len], 0))
		p.id = binary.BigEndian.Uint16(ip[ipv4ID:])
		clear(ip[ipv4Sum : ipv4Sum+2])
		if p.proto != none {
			clear(ip[ipv4Total : ipv4ID+2])
		}
		p.ipSum = uint64(checksum.Sum(ip, 0))
	}
	switch p.proto {
	case tcp:
		p.seq = binary.BigEndian.Uint32(l4[tcpSeq:])
		p.flags, p.urgent = l4[tcpFlags], binary.BigEndian.Uint16(l4[tcpUrgent:])
		clear(l4[tcpSeq : tcpSeq+4])
		l4[tcpFlags] = 0
		clear(l4[tcpSum : tcpUrgent+2])
		p.l4Sum += uint64(checksum.Sum(l4, 0)) + protoTCP
	case udp:
		clear(l4[udpLength : udpSum+2])
		p.l4Sum += uint64(checksum.Sum(l4, 0)) + protoUDP
	case none:
	}
}

// Segments returns the number of segments, at least 1.
func (p *Plan) Segments() int { return p.n }

// HeaderLen returns the length of the headers that Put writes, in bytes.
func (p *Plan) HeaderLen() int { return int(p.length) }

// Payload returns the payload of segment i: n bytes from off on, counted from the first byte
// after the headers.
func (p *Plan) Payload(i int) (off, n int) {
	off = i * p.mss
	return off, min(p.mss, p.payload-off)
}

// Put writes the headers of segment i to dst, whose length is at least HeaderLen. payload is
// the sum of exactly the segment's payload.
func (p *Plan) Put(dst []byte, i int, payload Sum) {
	h := dst[:copy(dst, p.headers[:p.length])]
	off, n := p.Payload(i)
	l4 := h[p.l4:]
	size := len(l4) + n // of TCP or UDP with its payload
	switch {
	case p.v6 && p.proto != none:
		binary.BigEndian.PutUint16(h[p.ip+ipv6Payload:], uint16(int(p.l4)-int(p.ip)-ipv6Len+size))
	case !p.v6:
		ip, sum := h[p.ip:p.l4], p.ipSum
		if p.proto != none {
			total, id := uint16(len(ip)+size), p.id+uint16(i)
			binary.BigEndian.PutUint16(ip[ipv4Total:], total)
			binary.BigEndian.PutUint16(ip[ipv4ID:], id)
			sum += uint64(total) + uint64(id)
		}
		binary.BigEndian.PutUint16(ip[ipv4Sum:], ^checksum.Fold(sum))
	}
	sum := payload.sum + p.l4Sum + uint64(size)
	switch p.proto {
	case tcp:
		seq, flags, urgent := p.seq+uint32(off), p.flags, p.urgent
		if i > 0 {
			flags &^= flagCWR
		}
		if i < p.n-1 {
			flags &^= flagFIN | flagPSH
		}
		if off > 0 && flags&flagURG != 0 {
			if int(urgent) > off {
				urgent -= uint16(off)
			} else {
				flags, urgent = flags&^flagURG, 0
			}
		}
		binary.BigEndian.PutUint32(l4[tcpSeq:], seq)
		l4[tcpFlags] = flags
		binary.BigEndian.PutUint16(l4[tcpUrgent:], urgent)
		sum += uint64(seq>>16) + uint64(seq&0xffff) + uint64(flags) + uint64(urgent)
		binary.BigEndian.PutUint16(l4[tcpSum:], ^checksum.Fold(sum))
	case udp:
		binary.BigEndian.PutUint16(l4[udpLength:], uint16(size))
		checksum := ^checksum.Fold(sum + uint64(size))
		if checksum == 0 {
			checksum = 0xffff // 0 means "no checksum" (RFC 768)
		}
		binary.BigEndian.PutUint16(l4[udpSum:], checksum)
	case none:
	}
}
