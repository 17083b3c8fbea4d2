package roce

import (
	"encoding/binary"

	"ipoibd/hca"
)

// DETHLen is the length of a datagram extended transport header (IBA 9.3.1).
const DETHLen = 8

// DETH is a datagram extended transport header (IBA 9.3.1). Its reserved byte
// is sent as zero and ignored on receive.
type DETH struct {
	QKey   hca.QKey
	SrcQPN hca.QPN
}

// Put writes h to the first DETHLen bytes of dst. It panics if dst is shorter.
func (h *DETH) Put(dst []byte) {
	_ = dst[DETHLen-1]
	binary.BigEndian.PutUint32(dst, uint32(h.QKey))
	binary.BigEndian.PutUint32(dst[4:], uint32(h.SrcQPN&hca.QPNMask))
}

// read sets all fields of h in place.
func (h *DETH) read(src *[DETHLen]byte) {
	h.QKey = hca.QKey(binary.BigEndian.Uint32(src[:]))
	h.SrcQPN = hca.QPN(binary.BigEndian.Uint32(src[4:])) & hca.QPNMask
}
