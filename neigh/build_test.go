package neigh

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/ud/ipoib"
)

// sourceAt returns the origin of messages from e at a LID, which is 0 on RoCE. In a subnet, messages to a group have a
// GRH, and others have none.
func (e endpoint) sourceAt(lid hca.LID, multicast bool) hca.UDSource {
	from := hca.UDSource{LID: lid, QPN: e.qpn}
	if lid == 0 || multicast {
		from.GID = e.gid
	}
	return from
}

// fabricARP returns an ARP message with the address of its real sender.
func fabricARP(from endpoint, op uint16, spa, tpa string, multicast bool) FromFabric {
	arp := ipoib.ARP{Op: op, SHA: from.addr(), SPA: ip(spa), TPA: ip(tpa)}
	if op == ipoib.ARPReply {
		arp.THA = selfEnd.addr()
	}
	msg := arp.Append(newMessage(ipoib.EtherTypeARP))
	return FromFabric{Msg: msg, From: from.key(), Multicast: multicast}
}

// hostARP returns an ARP frame from the host.
func hostARP(src, dst ipoib.MAC, op uint16, spa, tpa string) FromHost {
	arp := ipoib.EtherARP{Op: op, SHA: src, SPA: ip(spa), TPA: ip(tpa)}
	if !dst.IsMulticast() {
		arp.THA = dst
	}
	return FromHost{arp.Append(newFrame(dst, src, ipoib.EtherTypeARP))}
}

// hostIP returns a frame with an IP header and 8 bytes of UDP-like payload.
func hostIP(src, dst ipoib.MAC, from, to netip.Addr) FromHost {
	return FromHost{append(newFrame(dst, src, etherTypeFor(to)), ipPacket(from, to)...)}
}

func etherTypeFor(a netip.Addr) ipoib.EtherType {
	if a.Is4() {
		return ipoib.EtherTypeIPv4
	}
	return ipoib.EtherTypeIPv6
}

func ipPacket(from, to netip.Addr) []byte {
	if to.Is4() {
		b := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}
		b = append(b, from.AsSlice()...)
		return append(append(b, to.AsSlice()...), make([]byte, 8)...)
	}
	b := []byte{0x60, 0, 0, 0, 0, 8, 17, 64}
	b = append(b, from.AsSlice()...)
	return append(append(b, to.AsSlice()...), make([]byte, 8)...)
}

// Kinds of group records.
const (
	recordIs    = 2 // excluding no source: the answer of a member to a query
	recordLeave = 3 // change to including no source
	recordJoin  = 4 // change to excluding no source
)

// groupReport is a packet in which a station reports groups of one family: IGMP version 3 or MLD version 2.
func groupReport(kind byte, groups []netip.Addr) []byte {
	records := []byte{0, 0, 0, byte(len(groups))}
	for _, g := range groups {
		records = append(append(records, kind, 0, 0, 0), g.AsSlice()...)
	}
	if groups[0].Is4() {
		message := append([]byte{0x22, 0, 0, 0}, records...)
		binary.BigEndian.PutUint16(message[2:], ^checksum.Sum(message, 0))
		b := []byte{0x46, 0xc0, 0, byte(24 + len(message)), 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 8, 224, 0, 0, 22, 0x94, 4, 0, 0}
		return append(b, message...)
	}
	message := append([]byte{143, 0, 0, 0}, records...)
	b := []byte{0x60, 0, 0, 0, 0, byte(8 + len(message)), 0, 1}
	b = append(append(b, ip("fe80::8").AsSlice()...), ip("ff02::16").AsSlice()...)
	binary.BigEndian.PutUint16(message[2:], ^checksum.Sum(message, checksum.Pseudo(b[8:], 58, len(message))))
	return append(append(b, 58, 0, 5, 2, 0, 0, 1, 0), message...)
}

// ndMessage is an ND packet built field by field.
type ndMessage struct {
	typ      uint8
	src, dst netip.Addr
	fixed    []byte // behind the checksum
	options  []byte
}

// packet returns the IPv6 packet with its checksum (RFC 4443 section 2.3).
func (m ndMessage) packet() []byte {
	body := append(append([]byte{m.typ, 0, 0, 0}, m.fixed...), m.options...)
	b := []byte{0x60, 0, 0, 0, 0, 0, 58, 255}
	binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
	b = append(b, m.src.AsSlice()...)
	b = append(b, m.dst.AsSlice()...)
	sum := uint32(len(body)) + 58
	for _, part := range [][]byte{b[8:40], body} {
		for i, c := range part {
			sum += uint32(c) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	return append(b, body...)
}

// etherLink and ipoibLink are link-layer address options in the two forms.
func etherLink(typ uint8, m ipoib.MAC) []byte { return append([]byte{typ, 1}, m[:]...) }

func ipoibLink(typ uint8, e endpoint) []byte {
	a := e.addr()
	return append([]byte{typ, 3, 0, 0}, a[:]...)
}

// nd returns a message of the given type; target is used for NS, NA and
// Redirect. The destination of a Redirect is its target.
func nd(typ uint8, src, dst, target netip.Addr, options []byte) ndMessage {
	m := ndMessage{typ: typ, src: src, dst: dst, options: options}
	switch typ {
	case ipoib.NDRouterSolicit:
		m.fixed = make([]byte, 4)
	case ipoib.NDRouterAdvert:
		m.fixed = []byte{64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	case ipoib.NDNeighborSolicit:
		m.fixed = append(make([]byte, 4), target.AsSlice()...)
	case ipoib.NDNeighborAdvert:
		flags := ipoib.NAFlagOverride
		if !dst.IsMulticast() {
			flags |= ipoib.NAFlagSolicited
		}
		m.fixed = append([]byte{flags, 0, 0, 0}, target.AsSlice()...)
	case ipoib.NDRedirect:
		m.fixed = append(append(make([]byte, 4), target.AsSlice()...), target.AsSlice()...)
	}
	return m
}

func hostND(src, dst ipoib.MAC, m ndMessage) FromHost {
	return FromHost{append(newFrame(dst, src, ipoib.EtherTypeIPv6), m.packet()...)}
}

func fabricND(from endpoint, m ndMessage) FromFabric {
	msg := append(newMessage(ipoib.EtherTypeIPv6), m.packet()...)
	return FromFabric{Msg: msg, From: from.key(), Multicast: m.dst.IsMulticast()}
}
