package ud

import (
	"encoding/binary"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// txRules routes the host's frames. Segmentation belongs here too: a large
// frame will yield several descriptors, each a header from a side ring and a
// slice of the frame.
type txRules struct {
	mtu   int // bytes of IP packet
	scope uint8
	pkey  hca.PKey
	peers Peers // nil: no snapshot yet
}

// classify returns where the frame goes, and Sent; or SlowPathed; or why it is
// dropped. The checks, in their order:
//
//  1. shorter than virtio and Ethernet headers: Runt
//  2. requests segmentation or a checksum, which we never offered: Offload
//  3. not IPv4, ARP, RARP or IPv6: EtherType
//  4. payload above the MTU: TooLong
//  5. ND behind extension headers, which is not translated: HiddenND
//  6. no snapshot: NoPeers
//  7. source address not accepted by the snapshot: slow path
//  8. ARP, RARP and ND, whose bodies carry link addresses: slow path
//  9. group destination: the IP destination's group, else the broadcast group
//  10. unicast destination
//
// Frames to a destination that the snapshot lacks go to the slow path.
func (r *txRules) classify(frame []byte) (hca.UDDest, Reason) {
	if reason := r.check(frame); reason != Sent {
		return hca.UDDest{}, reason
	}
	ether, payload := frame[txEther:txPayload], frame[txPayload:]
	typ := etherTypeOf(ether)
	if !r.peers.FromHost(ipoib.MAC(ether[etherSrc:])) || carriesLinkAddr(typ, payload) {
		return hca.UDDest{}, SlowPathed
	}
	var to hca.UDDest
	var ok bool
	if dst := ipoib.MAC(ether); dst.IsMulticast() {
		to, ok = r.peers.Group(r.mgid(dst, typ, payload))
	} else {
		to, ok = r.peers.Unicast(dst)
	}
	if !ok {
		return hca.UDDest{}, SlowPathed
	}
	return to, Sent
}

// check makes the checks that do not depend on an address.
func (r *txRules) check(frame []byte) Reason {
	switch {
	case len(frame) < txPayload:
		return Runt
	case wantsOffload(frame):
		return Offload
	case !etherTypeOf(frame[txEther:]).Carried():
		return EtherType
	case len(frame)-txPayload > r.mtu:
		return TooLong
	case hidesND(etherTypeOf(frame[txEther:]), frame[txPayload:]):
		return HiddenND
	case r.peers == nil:
		return NoPeers
	}
	return Sent
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

// wantsOffload reports whether the virtio header requests an offload. DataValid
// does not: a bridge passes it on.
func wantsOffload(frame []byte) bool {
	h, err := vnet.Parse(frame)
	return err != nil || h.Flags&^vnet.DataValid != 0 || h.GSOType != vnet.GSONone
}

// carriesLinkAddr reports whether a packet's body contains link addresses,
// which differ between Ethernet and IPoIB.
func carriesLinkAddr(typ ipoib.EtherType, payload []byte) bool {
	switch typ {
	case ipoib.EtherTypeARP, ipoib.EtherTypeRARP:
		return true
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
