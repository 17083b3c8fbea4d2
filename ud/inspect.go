package ud

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/join"
	"ipoibd/hca/segment"
	"ipoibd/ud/coalesce"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// rxRules decides what happens to a message from the fabric.
type rxRules struct {
	mtu   int     // bytes of IP packet
	lids  portLID // how senders are identified
	peers Peers   // nil: no snapshot yet
}

// portLID says what identifies the senders to a port. The zero value is a RoCE port.
type portLID struct {
	used bool  // the LID, as on InfiniBand; else the GID
	lmc  uint8 // path bits of a LID
}

// message is a received message that passed the checks.
type message struct {
	typ      ipoib.EtherType
	end      int // offset of its end in the slot
	from     Sender
	virtio   vnet.Header    // of the frame for the host
	dst, src ipoib.MAC      // likewise; unset for the slow path
	bytes    *atomic.Uint64 // of the sender; nil: unknown, or for the slow path
}

// inspect returns the message that a successful completion left in buf, and
// Delivered, SlowPathed or the reason for dropping it. The checks, in their
// order:
//
//  1. longer than the slot: Truncated; shorter than the headers: Runt
//  2. on InfiniBand, a source LID that is not a port's: BadLID; on RoCE, no GRH flag: NoGRH; GRH area of unknown
//     layout: BadGRH; a large receive that is not a packet of joined segments: Malformed
//  3. our own probe: Probed; not IPv4, ARP, RARP, IPv6 or an echo: EtherType
//  4. payload, or the longest segment of a large receive, above the MTU: TooLong; leaveLast
//     keeps the last segment, which may be shorter
//  5. ND behind extension headers, which is not translated: HiddenND
//  6. no snapshot: NoPeers
//  7. sent from our own address: OwnMulticast
//  8. echoes, and ARP, RARP, ND and DHCP, whose bodies carry link addresses: slow path
//  9. no IP header of the version that the type requires: Malformed
//  10. a query of IGMP or MLD, or an unknown station: slow path. Of a large receive for an unknown
//     station, leaveLast keeps the last segment for the slow path; the others are UnknownStation
func (r *rxRules) inspect(buf []byte, wc *hca.WC) (m message, reason Reason) {
	if reason = checkLength(buf, wc); reason != Delivered {
		return m, reason
	}
	if reason = r.lids.sender(&m.from, buf, wc); reason != Delivered {
		return m, reason
	}
	m.end = int(wc.ByteLen)
	payload := buf[rxPayload:m.end]
	m.typ = ipoib.EtherType(binary.BigEndian.Uint16(buf[rxMessage:]))
	longest := len(payload)
	if wc.LRO.Segments != 0 {
		var p join.Packet
		if p.Parse(payload, m.typ == ipoib.EtherTypeIPv6, true, 0); p.Kind != join.Joinable {
			return m, Malformed
		}
		longest = p.Payload + wc.LRO.MSS
		m.virtio = coalesce.Virtio(&p, wc.LRO.MSS)
	} else if wc.Flags&hca.WCFlagIPCsumOK != 0 {
		m.virtio.Flags = vnet.DataValid // the device has verified the checksums
	}
	if reason = r.check(&m, payload, longest); reason != Delivered {
		return m, reason
	}
	ip, ok := ipoib.DestIP(m.typ, payload)
	if !ok {
		return m, Malformed
	}
	if ip.IsMulticast() && ipoib.IsMembershipQuery(m.typ, payload) {
		return m, SlowPathed
	}
	if m.dst, ok = r.hostDst(ip, m.from.Multicast); !ok {
		if wc.LRO.Segments != 0 {
			return m, UnknownStation
		}
		return m, SlowPathed
	}
	m.src, m.bytes = r.peers.PeerMAC(m.from.UDSource)
	return m, Delivered
}

// leaveLast reduces a large receive, whose segments are too long, to the last of them, which may
// be shorter. It returns false, and changes nothing, if wc is not a large receive's.
func leaveLast(buf []byte, wc *hca.WC) bool {
	if wc.LRO.Segments < 2 {
		return false
	}
	payload := buf[rxPayload:wc.ByteLen]
	typ := ipoib.EtherType(binary.BigEndian.Uint16(buf[rxMessage:]))
	var p join.Packet
	p.Parse(payload, typ == ipoib.EtherTypeIPv6, true, 0)
	var plan segment.Plan
	if plan.Cut(payload[:p.Payload], 0, p.Size(), wc.LRO.MSS) != nil || plan.Segments() != wc.LRO.Segments {
		return false
	}
	last := wc.LRO.Segments - 1
	off, n := plan.Payload(last)
	data := payload[p.Payload+off:][:n]
	var sum segment.Sum
	sum.Add(data)
	plan.Put(payload, last, sum)
	copy(payload[p.Payload:], data)
	wc.ByteLen, wc.LRO = uint32(rxPayload+p.Payload+n), hca.LRO{}
	return true
}

// checkLength makes the checks that must pass before the slot is read.
func checkLength(buf []byte, wc *hca.WC) Reason {
	switch {
	case uint64(wc.ByteLen) > uint64(len(buf)):
		return Truncated
	case wc.ByteLen < rxPayload:
		return Runt
	}
	return Delivered
}

// sender stores the origin of a message. A message without a GRH, as devices send within an InfiniBand subnet,
// went to one port: those to a group have a GRH (IBA 9.8.3).
func (p portLID) sender(from *Sender, buf []byte, wc *hca.WC) Reason {
	from.QPN = wc.SrcQPN
	network := wc.Network
	if p.used {
		network = hca.NetworkIPv6
		lid := hca.LID(wc.SLID)
		if from.LID = lid.Base(p.lmc); !lid.IsUnicast() || from.LID == 0 {
			return BadLID
		}
	}
	if wc.Flags&hca.WCFlagGRH == 0 {
		if !p.used {
			return NoGRH
		}
		return Delivered
	}
	sgid, dgid, err := hca.ParseGRH(buf, network)
	if err != nil {
		return BadGRH
	}
	from.GID, from.Multicast = sgid, dgid.IsMulticast()
	return Delivered
}

// check applies checks 3 to 8. The longest packet of the message has longest bytes.
func (r *rxRules) check(m *message, payload []byte, longest int) Reason {
	switch {
	case r.isProbe(m):
		return Probed
	case !m.typ.Carried() && m.typ != ipoib.EtherTypeEcho:
		return EtherType
	case longest > r.mtu:
		return TooLong
	case hidesND(m.typ, payload):
		return HiddenND
	case r.peers == nil:
		return NoPeers
	case r.peers.Self(m.from.UDSource):
		return OwnMulticast
	case m.typ == ipoib.EtherTypeEcho || carriesLinkAddr(m.typ, payload):
		return SlowPathed
	}
	return Delivered
}

// limitedBroadcast is 255.255.255.255.
var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// hostDst returns the destination of a frame for the host. It depends on the IP
// address, not on the GRH, because with replication a message to a group arrives
// in a packet to a unicast address. A message that was sent to a group but has a
// unicast IP address is taken for a directed broadcast, since the subnet mask is
// unknown here. hostDst returns false for an address that is not known on the host's side.
func (r *rxRules) hostDst(ip netip.Addr, toGroup bool) (dst ipoib.MAC, ok bool) {
	switch {
	case ip.IsMulticast() || ip == limitedBroadcast:
		return ipoib.GroupMAC(ip), true
	case toGroup:
		return ipoib.Broadcast, true
	}
	return r.peers.StationMAC(ip)
}

// ethernet turns the message into a frame for the sink, in place: virtio and
// Ethernet headers overwrite the end of the GRH area and the IPoIB header, and
// a short payload is padded with zeros.
func (m *message) ethernet(buf []byte) []byte {
	m.virtio.Put(buf[rxFrame:])
	ether := buf[rxEther:rxPayload]
	copy(ether, m.dst[:])
	copy(ether[etherSrc:], m.src[:])
	binary.BigEndian.PutUint16(ether[etherType:], uint16(m.typ))
	end := max(m.end, rxEther+etherMinLen)
	clear(buf[m.end:end])
	return buf[rxFrame:end]
}
