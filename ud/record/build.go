package record

import (
	"encoding/binary"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/join"
	"ipoibd/hca/roce"
	"ipoibd/hca/segment"
	"ipoibd/ud/ipoib"
)

// maxMessage is the longest message in bytes that is shown: with headers, padding and ICRC it
// fits in an IPv4 datagram. A message of a queue pair is shorter, unless a large one could not
// be cut.
const maxMessage = 1<<16 - 1 - 128

// Headers in front of the BTH, and what follows the message.
const (
	udpLen      = 8  // RFC 768
	ipv4Len     = 20 // RFC 791
	lrhLen      = 8  // IBA 7.7
	vcrcLen     = 2  // IBA 7.8.2
	erfLen      = 16 // https://wiki.wireshark.org/ERF
	maxOverhead = erfLen + lrhLen + hca.GRHLen + udpLen + roce.HeaderLen + roce.MaxPad + roce.ICRCLen + vcrcLen
)

// Builder builds packets from records. The zero value is ready to use.
type Builder struct {
	plan    segment.Plan
	joined  join.Packet
	message [maxMessage]byte
	packet  [maxMessage + maxOverhead]byte
}

// Build calls each with the packets of a record at a level, until each returns an error, which
// it returns. The level must be of the record's kind. A packet is valid until each returns.
func (b *Builder) Build(r *Record, l Level, each func(packet []byte) error) error {
	if r.Kind == Frame {
		return each(r.Data)
	}
	if n, ok := b.cut(r); ok {
		for i := range n {
			if err := each(b.build(r, l, b.segment(r, i))); err != nil {
				return err
			}
		}
		return nil
	}
	n := copy(b.message[:], r.head[:r.headLen])
	n += copy(b.message[n:], r.Data[etherLen:])
	return each(b.build(r, l, b.message[:n]))
}

// cut plans the segments of a large message, and returns their number; ok is false for other
// messages.
func (b *Builder) cut(r *Record) (n int, ok bool) {
	if r.mss == 0 || r.headLen < ipoib.HeaderLen {
		return 0, false
	}
	payload := r.Data[etherLen:]
	headers := r.headers - ipoib.HeaderLen
	if !r.Out {
		typ := ipoib.EtherType(binary.BigEndian.Uint16(r.head[:]))
		b.joined.Parse(payload, typ == ipoib.EtherTypeIPv6, true, 0)
		headers = b.joined.Payload
		if b.joined.Kind != join.Joinable {
			return 0, false
		}
		payload = payload[:min(len(payload), b.joined.Payload+b.joined.Size())]
	}
	if headers < 0 || headers > len(payload) || b.plan.Cut(payload[:headers], 0, len(payload)-headers, r.mss) != nil {
		return 0, false
	}
	return b.plan.Segments(), true
}

// segment returns the message of segment i.
func (b *Builder) segment(r *Record, i int) []byte {
	off, n := b.plan.Payload(i)
	data := r.Data[etherLen+b.plan.HeaderLen()+off:][:n]
	var sum segment.Sum
	sum.Add(data)
	copy(b.message[:], r.head[:])
	headers := b.message[ipoib.HeaderLen:][:b.plan.HeaderLen()]
	b.plan.Put(headers, i, sum)
	end := ipoib.HeaderLen + len(headers) + copy(b.message[ipoib.HeaderLen+len(headers):], data)
	return b.message[:end]
}

// build returns the packet of one message.
func (b *Builder) build(r *Record, l Level, msg []byte) []byte {
	h := r.headersOf()
	switch l {
	case RoCE:
		return b.roce(&h, msg)
	case InfiniBand:
		return b.infiniband(&h, msg)
	default:
		putGRH(b.packet[:], &h, roce.HeaderLen+len(msg)+roce.PadFor(len(msg))+roce.ICRCLen)
		n := copy(b.packet[hca.GRHLen:], msg)
		return b.packet[:hca.GRHLen+n]
	}
}

// roce returns the message as a RoCEv2 datagram.
func (b *Builder) roce(h *headers, msg []byte) []byte {
	path := roce.Path{Src: h.sgid.Addr(), Dst: h.dgid.Addr(), ID: h.id}
	is4 := path.Src.Is4() && path.Dst.Is4()
	ip := b.packet[:hca.GRHLen]
	datagram := b.packet[hca.GRHLen+udpLen:]
	size := b.transport(datagram, h, msg)
	datagram = datagram[:size+roce.ICRCLen]
	roce.PutICRC(datagram[size:], roce.ICRC(&path, datagram[:size]))
	roce.PutGRH(ip, &path, h.traffic, h.hops, len(datagram))
	udp := b.packet[hca.GRHLen:][:udpLen+len(datagram)]
	binary.BigEndian.PutUint16(udp, path.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], roce.Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], 0)
	if is4 {
		return b.packet[hca.GRHLen-ipv4Len:][:ipv4Len+len(udp)]
	}
	putFlow(ip, h.traffic, h.flow)
	const protoUDP = 17
	sum := ^checksum.Sum(udp, checksum.Pseudo(ip[8:], protoUDP, len(udp)))
	if sum == 0 {
		sum = 0xffff // zero is not allowed over IPv6 (RFC 8200, 8.1)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b.packet[:hca.GRHLen+len(udp)]
}

// transport writes BTH, DETH, message and padding, and returns their length.
func (*Builder) transport(dst []byte, h *headers, msg []byte) int {
	pad := roce.PadFor(len(msg))
	bth := roce.BTH{Opcode: roce.OpcodeUDSendOnly, Migrated: true, Pad: uint8(pad), PKey: h.pkey, DestQPN: h.dest}
	deth := roce.DETH{QKey: h.qkey, SrcQPN: h.src}
	bth.Put(dst)
	deth.Put(dst[roce.BTHLen:])
	n := roce.HeaderLen + copy(dst[roce.HeaderLen:], msg)
	clear(dst[n : n+pad])
	return n + pad
}
