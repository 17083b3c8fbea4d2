package join

import (
	"bytes"
	"encoding/binary"

	"ipoibd/hca/checksum"
)

const (
	// MaxBytes bounds a large packet: the length fields of IPv4 and UDP have 16 bits, and the
	// kernel's GRO has the same limit for IPv6 (GRO_LEGACY_MAX_SIZE).
	MaxBytes = 65535
	// MaxSegments bounds the number of packets joined into one. Linux before 6.9 refuses more
	// segments of UDP (UDP_MAX_SEGMENTS), and the kernel's GRO joins no more datagrams
	// (UDP_GRO_CNT_MAX).
	MaxSegments = 64
)

// Run is a sequence of packets that become one. The caller keeps the packets. It starts a run
// with the first one, extends it with each further one of the flow until Extend returns false
// or the run has ended, and then enlarges the first one.
type Run struct {
	N     int  // packets
	Bytes int  // of payload
	Ended bool // no packet can follow

	fixedID bool // all IPv4 identifications are equal
	pushed  bool // the last packet has PSH
}

// Start makes p the only packet of the run, which ends with it unless p is joinable and has no
// PSH.
func (r *Run) Start(p *Packet) {
	*r = Run{N: 1, Bytes: p.Size(), Ended: p.Kind != Joinable || p.push}
}

// Extend adds q, at the beginning of c, to the run, whose first packet is p, at the beginning
// of b. The caller has checked that q is joinable, of the flow of p, and behind the same
// link-layer header. Extend returns false, and leaves the run as it is, if q does not fit or a
// checksum is wrong.
func (r *Run) Extend(p, q *Packet, b, c []byte) bool {
	if r.Ended {
		return false
	}
	fixedID, fits := r.fits(p, q, b, c)
	if !fits || !p.intact(b) || !q.intact(c) {
		return false
	}
	r.N, r.Bytes, r.fixedID, r.pushed = r.N+1, r.Bytes+q.Size(), fixedID, q.push
	r.Ended = q.push || q.Size() < p.Size()
	return true
}

// fits reports whether the headers of q may follow the run, and whether all IPv4
// identifications would be equal.
func (r *Run) fits(p, q *Packet, b, c []byte) (fixedID, ok bool) {
	if r.N == MaxSegments || q.Size() > p.Size() || p.Payload+r.Bytes+q.Size() > MaxBytes {
		return false, false
	}
	if p.IPv6 {
		ok = equal32(b, c, 0) && b[ipv6Hops] == c[ipv6Hops] // version, class, flow label; hop limit
	} else if fixedID, ok = r.nextID(b, c); ok {
		ok = equal16(b, c, 0) && equal16(b, c, ipv4Frag) && b[ipv4TTL] == c[ipv4TTL] // service, DF, TTL
	}
	if ok && p.Proto == TCP {
		ok = r.followsTCP(b[p.Transport:p.Payload], c[q.Transport:q.Payload])
	}
	return fixedID, ok
}

// nextID checks the IPv4 identification of the run's next packet. The second packet decides
// whether the identifications rise or, with DF, are all equal.
func (r *Run) nextID(b, c []byte) (fixed, ok bool) {
	distance := binary.BigEndian.Uint16(c[ipv4ID:]) - binary.BigEndian.Uint16(b[ipv4ID:])
	fixed = r.fixedID || r.N == 1 && distance == 0 && binary.BigEndian.Uint16(b[ipv4Frag:]) == dontFrag
	if fixed {
		return true, distance == 0
	}
	return false, distance == uint16(r.N)
}

// followsTCP compares the TCP headers of the run's first packet and of its next.
func (r *Run) followsTCP(p, q []byte) bool {
	return len(p) == len(q) &&
		binary.BigEndian.Uint32(q[tcpSeq:]) == binary.BigEndian.Uint32(p[tcpSeq:])+uint32(r.Bytes) &&
		equal32(p, q, tcpAck) && p[tcpOff] == q[tcpOff] && (p[tcpFlags]^q[tcpFlags])&^flagPSH == 0 &&
		equal16(p, q, tcpWindow) && equal16(p, q, tcpUrgent) && bytes.Equal(p[tcpMinLen:], q[tcpMinLen:])
}

func equal32(a, b []byte, at int) bool {
	return binary.NativeEndian.Uint32(a[at:]) == binary.NativeEndian.Uint32(b[at:])
}

func equal16(a, b []byte, at int) bool {
	return binary.NativeEndian.Uint16(a[at:]) == binary.NativeEndian.Uint16(b[at:])
}

// Enlarge changes the headers of p, at the beginning of b, to those of the large packet of the
// run that p begins. It has PSH if the last packet has: segmentation gives PSH only to the last
// segment. The checksum of TCP or UDP becomes the pseudo-header's, as the kernel expects
// it of a packet that is to be segmented (CHECKSUM_PARTIAL).
func (r *Run) Enlarge(p *Packet, b []byte) {
	end := p.Payload + r.Bytes
	if p.IPv6 {
		binary.BigEndian.PutUint16(b[ipv6PayloadLen:], uint16(end-p.Transport))
	} else {
		binary.BigEndian.PutUint16(b[ipv4TotalLen:], uint16(end))
		binary.BigEndian.PutUint16(b[ipv4Sum:], 0)
		binary.BigEndian.PutUint16(b[ipv4Sum:], ^checksum.Sum(b[:ipv4Len], 0))
	}
	t := b[p.Transport:]
	if p.Proto == UDP {
		binary.BigEndian.PutUint16(t[udpLength:], uint16(end-p.Transport))
	} else if r.pushed {
		t[tcpFlags] |= flagPSH
	}
	binary.BigEndian.PutUint16(t[p.CsumOffset():], p.pseudo(b, end))
}
