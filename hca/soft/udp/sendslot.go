package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// controlRoom is enough for the control messages of a packet, in bytes. The maximum is 120,
// of a received IPv4 packet, whose destination the kernel reports twice.
const controlRoom = 192

// sendSlot is the memory of one message to send. It is laid out once; only addresses, TTL
// and TOS change. It must not move.
type sendSlot struct {
	index int // of the netdev
	name  sockaddr
	iov   [transport.MaxVec]unix.Iovec
	v4    control4
	v6    control6
}

// control4 holds the control messages of an IPv4 packet. The TTL is the last one, so that a
// packet with the default TTL is sent without it.
type control4 struct {
	buf  [controlRoom]byte // first: it must be aligned as a pointer is
	all  int               // length with the TTL
	rest int               // length without
	info *unix.Inet4Pktinfo
	tos  *int32
	ttl  *int32
}

// control6 holds those of an IPv6 packet.
type control6 struct {
	buf    [controlRoom]byte
	all    int
	rest   int
	info   *unix.Inet6Pktinfo
	tclass *int32
	hops   *int32
}

func (s *sendSlot) init(index int) {
	s.index = index
	s.v4.init(index)
	s.v6.init(index)
}

func (c *control4) init(index int) {
	b := c.buf[:0]
	b, c.info = appendControl[unix.Inet4Pktinfo](b, unix.SOL_IP, unix.IP_PKTINFO)
	b, c.tos = appendControl[int32](b, unix.SOL_IP, unix.IP_TOS)
	c.rest = len(b)
	b, c.ttl = appendControl[int32](b, unix.SOL_IP, unix.IP_TTL)
	c.all = len(b)
	c.info.Ifindex = int32(index)
}

func (c *control6) init(index int) {
	b := c.buf[:0]
	b, c.info = appendControl[unix.Inet6Pktinfo](b, unix.SOL_IPV6, unix.IPV6_PKTINFO)
	b, c.tclass = appendControl[int32](b, unix.SOL_IPV6, unix.IPV6_TCLASS)
	c.rest = len(b)
	b, c.hops = appendControl[int32](b, unix.SOL_IPV6, unix.IPV6_HOPLIMIT)
	c.all = len(b)
	c.info.Ifindex = uint32(index)
}

// fill makes msg send pkt. It leaves the name nil if pkt cannot be sent.
func (s *sendSlot) fill(msg *unix.Mmsghdr, pkt *transport.Packet, ipv6 bool) {
	*msg = unix.Mmsghdr{}
	v4 := pkt.Dst.Is4()
	if v4 != pkt.Src.Is4() || !pkt.Dst.IsValid() || !v4 && !ipv6 || len(pkt.Vec) > transport.MaxVec {
		return
	}
	msg.Hdr.Name = (*byte)(unsafe.Pointer(&s.name))
	if v4 {
		s.fill4(&msg.Hdr, pkt)
	} else {
		s.fill6(&msg.Hdr, pkt)
	}
	n := 0
	for _, v := range pkt.Vec {
		if len(v) == 0 {
			continue
		}
		s.iov[n].Base = &v[0]
		s.iov[n].SetLen(len(v))
		n++
	}
	msg.Hdr.Iov = &s.iov[0]
	msg.Hdr.SetIovlen(n)
}

func (s *sendSlot) fill4(hdr *unix.Msghdr, pkt *transport.Packet) {
	hdr.Namelen = setAddr4(&s.name, pkt.Dst, Port)
	c := &s.v4
	c.info.Spec_dst, *c.tos, *c.ttl = pkt.Src.As4(), int32(pkt.TOS), int32(pkt.TTL)
	hdr.Control = &c.buf[0]
	hdr.SetControllen(pick(pkt.TTL == 0, c.rest, c.all))
}

func (s *sendSlot) fill6(hdr *unix.Msghdr, pkt *transport.Packet) {
	hdr.Namelen = setAddr6(&s.name, pkt.Dst, Port, s.index)
	c := &s.v6
	c.info.Addr, *c.tclass, *c.hops = pkt.Src.As16(), int32(pkt.TOS), int32(pkt.TTL)
	hdr.Control = &c.buf[0]
	hdr.SetControllen(pick(pkt.TTL == 0, c.rest, c.all))
}

func pick(first bool, a, b int) int {
	if first {
		return a
	}
	return b
}
