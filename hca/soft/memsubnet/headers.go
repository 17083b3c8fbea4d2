package memsubnet

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca"
)

// headers are the routing headers of a message, as far as its receiver learns of them: the LRH, and the
// GRH if there is one.
type headers struct {
	slid         uint16
	sl           uint8
	global       bool
	sgid, dgid   hca.GID
	traffic, hop uint8
	flow         uint32
}

// maxHeaders bounds the different headers that the ports of a subnet send. A hop limit of 0 means the
// system's default, so it is not part of a number.
const maxHeaders = 256 * 255

// NoGRH fills the GRH area of a receive without a GRH. Its contents are unspecified (IBA 11.4.1.2). It is neither IPv4
// nor IPv6.
const NoGRH = 0xa5

// nowhere is an address that no port has: the discard prefix (RFC 6666).
var nowhere = netip.MustParseAddr("100::")

// route returns the handle on the fabric for a message of a port to a QPN by an address handle. A message
// that is not forwarded is counted, and leads nowhere.
func (s *Subnet) route(from *Port, ah *hca.AHSpec, to hca.QPN) hca.AHSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst, why := s.destination(from, ah, to)
	if why != "" {
		s.drops[why]++
		return onFabric(nowhere)
	}
	h := headers{slid: from.attr.LID | from.pathBits&from.pathMask(), sl: ah.SL, global: ah.Global}
	if ah.Global {
		h.sgid, h.dgid = from.attr.GIDs[ah.SGIDIndex].GID, ah.DGID
		h.traffic, h.hop, h.flow = ah.Traffic, ah.HopLimit, ah.FlowLabel
	}
	out := onFabric(dst)
	out.Traffic, out.HopLimit = s.number(h)
	return out
}

// onFabric returns a handle of the software HCA.
func onFabric(dst netip.Addr) hca.AHSpec {
	return hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(dst)}
}

// destination returns the address on the fabric that a message goes to, or why it is lost. s.mu is held.
func (s *Subnet) destination(from *Port, ah *hca.AHSpec, qpn hca.QPN) (dst netip.Addr, why Drop) {
	to := s.portAt(ah.DLID)
	switch {
	case from.attr.State != hca.PortActive:
		return dst, DropInactive
	case ah.Global && !from.hasGID(ah.SGIDIndex):
		return dst, DropWrongGID
	case isMLID(ah.DLID):
		if !s.isMember(from, ah.DLID, false) {
			return dst, DropNotMember
		}
		return s.groupAddr(group{ah.DGID, ah.DLID}), ""
	case s.sm != nil && ah.DLID == s.view.LID && qpn == hca.QPNGSI:
		return s.sm.wire, ""
	case to == nil:
		return dst, DropNoLID
	case ah.Global && !to.owns(ah.DGID):
		return dst, DropWrongGID
	}
	return to.wire, ""
}

// number returns the number of headers, as the traffic class and the hop limit of a datagram. s.mu is held.
func (s *Subnet) number(h headers) (traffic, hop uint8) {
	n, ok := s.numbers[h]
	if !ok {
		n = len(s.headers)
		if n == maxHeaders {
			panic("memsubnet: too many different routing headers")
		}
		s.headers, s.numbers[h] = append(s.headers, h), n
	}
	return uint8(n / 255), uint8(n%255 + 1)
}

// numbered returns the headers with a number. It panics if no headers have the number: the user has changed the
// GRH area of a receive before its completion.
func (s *Subnet) numbered(traffic, hop uint8) headers {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(traffic)*255 + int(hop) - 1
	if n < 0 || n >= len(s.headers) {
		panic("memsubnet: the memory of a posted receive has been changed")
	}
	return s.headers[n]
}

// Fields of a GRH (IBA 8.3).
const (
	grhVersion = 6 << 28 // of the first word, which also has the traffic class and the flow label
	grhHop     = 7
	grhSGID    = 8
	grhDGID    = 24
)

// finish completes a receive by the header whose number is in its GRH area, and writes the area.
func (s *Subnet) finish(wc *hca.WC, area *[hca.GRHLen]byte) {
	first := binary.BigEndian.Uint32(area[:])
	h := s.numbered(uint8(first>>20), area[grhHop])
	wc.SLID, wc.SL = h.slid, h.sl
	if !h.global {
		wc.Flags &^= hca.WCFlagGRH
		wc.Network = hca.NetworkUnknown
		for i := range area {
			area[i] = NoGRH
		}
		return
	}
	binary.BigEndian.PutUint32(area[:], grhVersion|uint32(h.traffic)<<20|h.flow)
	area[grhHop] = h.hop
	copy(area[grhSGID:], h.sgid[:])
	copy(area[grhDGID:], h.dgid[:])
}
