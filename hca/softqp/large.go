package softqp

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/join"
)

// large is a receive that holds a message and may get more of its flow; see hca.LRO. It stays
// open until a message does not fit or RecvDone is called, so no message waits for another.
type large struct {
	open   bool
	buf    []byte // of the receive
	srcQPN hca.QPN
	src    netip.Addr
	dst    netip.Addr
	tos    uint8
	ttl    uint8
	head   join.Packet // of the first message
	next   join.Packet
	run    join.Run
}

// largeIP is where the IP packet begins in the buffer of a receive.
const largeIP = hca.GRHLen + hca.EncapLen

// EtherTypes in the encapsulation header (RFC 4391, section 6).
const (
	encapIPv4 = 0x0800
	encapIPv6 = 0x86dd
)

// parseSegment reads the headers of a message. It returns false if the message cannot be joined.
func parseSegment(p *join.Packet, msg []byte, udp bool) bool {
	if len(msg) < hca.EncapLen {
		return false
	}
	typ := binary.BigEndian.Uint16(msg)
	if typ != encapIPv4 && typ != encapIPv6 {
		return false
	}
	p.Parse(msg[hca.EncapLen:], typ == encapIPv6, udp, 0)
	return p.Kind == join.Joinable
}

// toGroup reports whether a message was sent to a group. A replicated one was sent to a unicast
// address.
func (in *Inbound) toGroup() bool {
	return in.DestQPN == hca.QPNMulticast || in.Path.Dst.IsMulticast()
}

// start opens the receive that in was just written to, if another message can be joined to in.
// For that, the receive must be in one piece, with room for two such messages.
func (l *large) start(in *Inbound, place [][]byte, udp bool) {
	if len(place) != 1 || len(place[0]) < hca.GRHLen+2*in.Len || in.toGroup() {
		return
	}
	msg := place[0][hca.GRHLen:][:in.Len]
	if !parseSegment(&l.head, msg, udp) {
		return
	}
	if l.run.Start(&l.head); l.run.Ended {
		return
	}
	l.open, l.buf, l.srcQPN = true, place[0], in.SrcQPN
	l.src, l.dst, l.tos, l.ttl = in.Path.Src, in.Path.Dst, in.TOS, in.TTL
}

// join appends the payload of a message. It returns false if the message must go to another
// receive.
func (l *large) join(in *Inbound) bool {
	if l.run.Ended || len(in.Payload) != 1 || in.toGroup() ||
		in.SrcQPN != l.srcQPN || in.Path.Src != l.src || in.Path.Dst != l.dst ||
		in.TOS != l.tos || in.TTL != l.ttl || !parseSegment(&l.next, in.Payload[0], true) {
		return false
	}
	encap, ip := in.Payload[0][:hca.EncapLen], in.Payload[0][hca.EncapLen:]
	first := l.buf[largeIP:]
	at := l.head.Payload + l.run.Bytes
	if !l.head.SameFlow(&l.next, first, ip) || !bytes.Equal(encap, l.buf[hca.GRHLen:largeIP]) ||
		len(first) < at+l.next.Size() || !l.run.Extend(&l.head, &l.next, first, ip) {
		return false
	}
	copy(first[at:], ip[l.next.Payload:l.next.End])
	return true
}

// finish closes the receive, whose completion is wc.
func (l *large) finish(wc *hca.WC) {
	l.open = false
	if l.run.N > 1 {
		l.run.Enlarge(&l.head, l.buf[largeIP:])
		wc.ByteLen = uint32(largeIP + l.head.Payload + l.run.Bytes)
		wc.Flags |= hca.WCFlagIPCsumOK
		wc.LRO = hca.LRO{Segments: l.run.N, MSS: l.head.Size()}
	}
}
