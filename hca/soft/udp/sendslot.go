package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// controlRoom is the room in bytes for the control messages of a packet. The maximum is 144: a
// received IPv4 packet, whose destination the kernel reports twice, with a mark.
const controlRoom = 192

// sendSlot is the memory of one message to send. It is laid out once; only addresses, TTL,
// TOS, the data and the size of a train's datagrams change. It must not move.
type sendSlot struct {
	index int // of the netdev
	name  sockaddr
	data  unix.Iovec
	v4    control4
	v6    control6
}

// control4 holds the control messages of an IPv4 packet. The size of a train's datagrams comes
// first and the TTL last, so that a single packet can be sent without the former, and a packet
// with the default TTL without the latter.
type control4 struct {
	buf  [controlRoom]byte // first: it must be aligned as a pointer is
	size *uint16           // UDP_SEGMENT
	info *unix.Inet4Pktinfo
	tos  *int32
	ttl  *int32
	at   controlBounds
}

// control6 holds the messages of an IPv6 packet.
type control6 struct {
	buf    [controlRoom]byte
	size   *uint16
	info   *unix.Inet6Pktinfo
	tclass *int32
	hops   *int32
	at     controlBounds
}

// controlBounds are offsets of control messages in their buffer.
type controlBounds struct{ info, ttl, end int }

// of returns the first byte of the control messages that a packet needs, and their length.
func (b *controlBounds) of(buf []byte, pkt *transport.Packet) (*byte, int) {
	from, to := b.info, b.end
	if pkt.Segs > 1 {
		from = 0
	}
	if pkt.TTL == 0 {
		to = b.ttl
	}
	return &buf[from], to - from
}

func (s *sendSlot) init(index int) {
	s.index = index
	s.v4.init(index)
	s.v6.init(index)
}

func (c *control4) init(index int) {
	b := c.buf[:0]
	b, c.size = appendControl[uint16](b, unix.SOL_UDP, unix.UDP_SEGMENT)
	c.at.info = len(b)
	b, c.info = appendControl[unix.Inet4Pktinfo](b, unix.SOL_IP, unix.IP_PKTINFO)
	b, c.tos = appendControl[int32](b, unix.SOL_IP, unix.IP_TOS)
	c.at.ttl = len(b)
	b, c.ttl = appendControl[int32](b, unix.SOL_IP, unix.IP_TTL)
	c.at.end = len(b)
	c.info.Ifindex = int32(index)
}

func (c *control6) init(index int) {
	b := c.buf[:0]
	b, c.size = appendControl[uint16](b, unix.SOL_UDP, unix.UDP_SEGMENT)
	c.at.info = len(b)
	b, c.info = appendControl[unix.Inet6Pktinfo](b, unix.SOL_IPV6, unix.IPV6_PKTINFO)
	b, c.tclass = appendControl[int32](b, unix.SOL_IPV6, unix.IPV6_TCLASS)
	c.at.ttl = len(b)
	b, c.hops = appendControl[int32](b, unix.SOL_IPV6, unix.IPV6_HOPLIMIT)
	c.at.end = len(b)
	c.info.Ifindex = uint32(index)
}

// fill makes msg send pkt. It leaves the name nil if pkt cannot be sent.
func (s *sendSlot) fill(msg *unix.Mmsghdr, pkt *transport.Packet, ipv6 bool) {
	*msg = unix.Mmsghdr{}
	v4 := pkt.Dst.Is4()
	if !pkt.Valid() || !v4 && !ipv6 {
		return
	}
	hdr := &msg.Hdr
	hdr.Name = (*byte)(unsafe.Pointer(&s.name))
	var length int
	if v4 {
		hdr.Namelen = setAddr4(&s.name, pkt.Dst, Port)
		c := &s.v4
		*c.size, *c.tos, *c.ttl = uint16(pkt.SegSize), int32(pkt.TOS), int32(pkt.TTL)
		c.info.Spec_dst = pkt.Src.As4()
		hdr.Control, length = c.at.of(c.buf[:], pkt)
	} else {
		hdr.Namelen = setAddr6(&s.name, pkt.Dst, s.index)
		c := &s.v6
		*c.size, *c.tclass, *c.hops = uint16(pkt.SegSize), int32(pkt.TOS), int32(pkt.TTL)
		c.info.Addr = pkt.Src.As16()
		hdr.Control, length = c.at.of(c.buf[:], pkt)
	}
	hdr.SetControllen(length)
	s.data.Base = unsafe.SliceData(pkt.Data)
	s.data.SetLen(len(pkt.Data))
	hdr.Iov = &s.data
	hdr.SetIovlen(1)
}
