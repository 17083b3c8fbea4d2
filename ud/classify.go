package ud

import (
	"encoding/binary"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/segment"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// txRules routes the host's frames.
type txRules struct {
	mtu   int  // bytes of IP packet
	large bool // the device fills in checksums and segments large frames
	from  sources
	scope uint8
	pkey  hca.PKey
	peers Peers // nil: no snapshot yet
}

// route is where a frame goes, and how it is cut.
type route struct {
	to      hca.UDDest
	bytes   *atomic.Uint64 // of the peer; nil: a group
	headers int            // bytes of a large frame's headers, from Ethernet to TCP or UDP
	mss     int            // bytes of payload of each segment; 0: the frame is sent whole
}

// segments returns how many segments a frame of n bytes, from Ethernet on, becomes.
func (r route) segments(n int) int { return (n - r.headers + r.mss - 1) / r.mss }

// first reduces a large frame, from Ethernet on, to its first segment, in place. It returns nil
// if the frame cannot be cut.
func (r route) first(ether []byte) []byte {
	var plan segment.Plan
	if plan.Cut(ether[etherHeaderLen:r.headers], 0, len(ether)-r.headers, r.mss) != nil {
		return nil
	}
	_, n := plan.Payload(0)
	var sum segment.Sum
	sum.Add(ether[r.headers:][:n])
	plan.Put(ether[etherHeaderLen:], 0, sum)
	return ether[:r.headers+n]
}

// classify returns Sent and the route of the frame, or SlowPathed, or the reason for dropping it.
// It fills in the partial checksum of a frame that is sent whole. The checks, in their order:
//
//  1. shorter than virtio and Ethernet headers: Runt
//  2. requests segmentation or a checksum that was not offered, or the request is
//     inconsistent: Offload
//  3. not IPv4, ARP, RARP or IPv6: EtherType
//  4. payload, or the payload of a segment, above the MTU: TooLong
//  5. headers of a large frame longer than devices accept: LongHeaders
//  6. ND behind extension headers, which is not translated: HiddenND
//  7. an IP address that the host may not use: ForeignSource
//  8. ND of a router, while the host's addresses are checked: RouterMessage
//  9. no snapshot: NoPeers
//  10. source address not accepted by the snapshot: slow path
//  11. ARP, RARP and ND, whose bodies carry link addresses; DHCP; IGMP and MLD: slow path
//  12. group destination: the IP destination's group, else the broadcast group
//  13. unicast destination
//
// Frames to a destination that the snapshot lacks go to the slow path, large ones only with
// their first segment; see [route.first].
func (r *txRules) classify(frame []byte) (route, Reason) {
	to, reason := r.check(frame)
	if reason != Sent {
		return route{}, reason
	}
	to.to, to.bytes, reason = r.dest(frame)
	return to, reason
}

// dest returns the destination of a frame that has passed the checks, or SlowPathed.
func (r *txRules) dest(frame []byte) (to hca.UDDest, bytes *atomic.Uint64, reason Reason) {
	ether, payload := frame[txEther:txPayload], frame[txPayload:]
	typ := etherTypeOf(ether)
	if !r.peers.FromHost(ipoib.MAC(ether[etherSrc:])) || carriesLinkAddr(typ, payload) {
		return to, nil, SlowPathed
	}
	var ok bool
	if dst := ipoib.MAC(ether); dst.IsMulticast() {
		if ipoib.IsMembership(typ, payload) {
			return to, nil, SlowPathed
		}
		to, ok = r.peers.Group(r.mgid(dst, typ, payload))
	} else {
		to, bytes, ok = r.peers.Unicast(dst)
	}
	if !ok {
		return hca.UDDest{}, nil, SlowPathed
	}
	return to, bytes, Sent
}

// check makes the checks that do not depend on an address.
func (r *txRules) check(frame []byte) (to route, reason Reason) {
	if len(frame) < txPayload {
		return to, Runt
	}
	to, ok := r.offload(frame)
	longest := len(frame) - txPayload
	if to.mss > 0 {
		longest = to.headers - etherHeaderLen + to.mss
	}
	switch {
	case !ok:
		return to, Offload
	case !etherTypeOf(frame[txEther:]).Carried():
		return to, EtherType
	case longest > r.mtu:
		return to, TooLong
	case to.mss > 0 && to.headers-etherHeaderLen+hca.EncapLen > hca.MaxLSOHeader:
		return to, LongHeaders
	case hidesND(etherTypeOf(frame[txEther:]), frame[txPayload:]):
		return to, HiddenND
	case !r.from.permit(etherTypeOf(frame[txEther:]), frame[txPayload:]):
		return to, ForeignSource
	case r.from != nil && ipoib.IsRouterND(etherTypeOf(frame[txEther:]), frame[txPayload:]):
		return to, RouterMessage
	case r.peers == nil:
		return to, NoPeers
	}
	return to, Sent
}

// offload returns how to cut a frame. It fills in the checksum of a frame that is sent whole,
// before anything inspects it. It returns false if the virtio header requests an offload that
// was not offered, or is inconsistent.
func (r *txRules) offload(frame []byte) (to route, ok bool) {
	h, err := vnet.Parse(frame)
	if err != nil {
		return to, false
	}
	if h.Flags&^vnet.DataValid == 0 && h.GSOType == vnet.GSONone { // a bridge can leave DataValid set
		return to, true
	}
	if !r.large {
		return to, false
	}
	ether := frame[txEther:]
	headers, err := h.Check(ether)
	if err != nil {
		return to, false
	}
	if h.GSOType == vnet.GSONone {
		h.Complete(ether)
		return to, true
	}
	to.headers, to.mss = headers, int(h.GSOSize)
	if headers+to.mss >= len(ether) { // one segment: the device accepts that as a large send too
		to.mss = len(ether) - headers
	}
	return to, to.segments(len(ether)) <= hca.MaxLSOSegments
}

// mgid returns the MGID of a multicast frame. It is derived from the IP
// destination, because an Ethernet group address holds too few of its bits (RFC
// 4391 section 4). Without an IP group address the frame goes to the broadcast
// group.
func (r *txRules) mgid(dst ipoib.MAC, typ ipoib.EtherType, payload []byte) hca.GID {
	if !dst.IsBroadcast() {
		if ip, ok := ipoib.DestIP(typ, payload); ok && ip.IsMulticast() {
			return ipoib.GroupMGID(r.scope, r.pkey, ip)
		}
	}
	return ipoib.BroadcastMGID(r.scope, r.pkey)
}

// carriesLinkAddr reports whether a packet's body contains link addresses,
// which differ between Ethernet and IPoIB.
func carriesLinkAddr(typ ipoib.EtherType, payload []byte) bool {
	switch typ {
	case ipoib.EtherTypeARP, ipoib.EtherTypeRARP:
		return true
	case ipoib.EtherTypeIPv4:
		return ipoib.IsDHCP(typ, payload)
	case ipoib.EtherTypeIPv6:
		return ipoib.IsND(payload)
	default:
		return false
	}
}

// hidesND reports whether a packet may contain link addresses that cannot be
// translated.
func hidesND(typ ipoib.EtherType, payload []byte) bool {
	return typ == ipoib.EtherTypeIPv6 && ipoib.HidesND(payload)
}

func etherTypeOf(ether []byte) ipoib.EtherType {
	return ipoib.EtherType(binary.BigEndian.Uint16(ether[etherType:]))
}
