package record

import (
	"encoding/binary"

	"ipoibd/hca"
)

// headers are the fields of a packet's headers, except lengths. Those that are not known are
// zero.
type headers struct {
	sgid, dgid hca.GID
	global     bool // there is a GRH; always on RoCE
	traffic    uint8
	flow       uint32
	hops       uint8
	id         uint16 // of IPv4

	slid, dlid uint16
	sl         uint8

	pkey      hca.PKey
	qkey      hca.QKey
	src, dest hca.QPN
}

// headersOf returns the fields of a message's headers. They come from the work request and
// its address handle, or from the GRH area and the completion.
func (r *Record) headersOf() headers {
	if r.Out {
		return headers{
			sgid: r.self.GID, dgid: r.to.DGID, global: r.to.Global,
			traffic: r.to.Traffic, flow: r.to.FlowLabel, hops: r.to.HopLimit,
			slid: r.self.LID, dlid: r.to.DLID, sl: r.to.SL,
			pkey: r.self.PKey, qkey: r.qkey, src: r.self.QPN, dest: r.qpn,
		}
	}
	h := headers{
		slid: r.wc.SLID, dlid: r.self.LID, sl: r.wc.SL,
		pkey: r.self.PKey, qkey: r.self.QKey, src: r.wc.SrcQPN, dest: r.self.QPN,
	}
	if r.wc.Flags&hca.WCFlagGRH == 0 {
		h.dgid = r.self.GID
		return h
	}
	sgid, dgid, err := hca.ParseGRH(r.grh[:], r.wc.Network)
	if err != nil {
		h.dgid = r.self.GID
		return h
	}
	h.sgid, h.dgid, h.global = sgid, dgid, true
	if dgid.IsMulticast() {
		h.dest = hca.QPNMulticast
	}
	if ip := r.grh[hca.GRHLen-ipv4Len:]; sgid.Addr().Is4() && ip[0]>>4 == 4 {
		h.traffic, h.id, h.hops = ip[1], binary.BigEndian.Uint16(ip[4:]), ip[8]
	} else {
		flow := binary.BigEndian.Uint32(r.grh[:])
		h.traffic, h.flow, h.hops = uint8(flow>>20), flow&(1<<20-1), r.grh[7]
	}
	return h
}

// nextIBA is the next header of a GRH: IBA transport (IBA 8.3).
const nextIBA = 0x1b

// putGRH writes a GRH (IBA 8.3). n is the length of what follows, up to the ICRC.
func putGRH(dst []byte, h *headers, n int) {
	putFlow(dst, h.traffic, h.flow)
	binary.BigEndian.PutUint16(dst[4:], uint16(n))
	dst[6], dst[7] = nextIBA, h.hops
	copy(dst[8:], h.sgid[:])
	copy(dst[24:], h.dgid[:])
}

// putFlow writes version, traffic class and flow label of a GRH or an IPv6 header.
func putFlow(dst []byte, traffic uint8, flow uint32) {
	binary.BigEndian.PutUint32(dst, 6<<28|uint32(traffic)<<20|flow&(1<<20-1))
}
