package roce

import (
	"encoding/binary"

	"ipoibd/hca"
)

// BTHLen is the length of a base transport header (IBA 9.2).
const BTHLen = 12

// BTH opcodes of unreliable datagrams (IBA 9.2.1, table 38).
const (
	OpcodeUDSendOnly          = 0x64
	opcodeUDSendOnlyImmediate = 0x65
)

// Bits of the BTH (IBA 9.2).
const (
	bthSolicited = 1 << 7 // byte 1
	bthMigrated  = 1 << 6
	bthPadShift  = 4
	bthPadMask   = 3
	bthVersion   = 0x0f
	bthFECN      = 1 << 7 // byte 4
	bthBECN      = 1 << 6
	bthAckReq    = 1 << 7 // byte 8
	bth24        = 1<<24 - 1
)

// bthResv8a is the offset of the byte that routers may change: FECN, BECN and
// six reserved bits.
const bthResv8a = 4

// BTH is a base transport header (IBA 9.2). Reserved bits are sent as zero and
// ignored on receive.
type BTH struct {
	Opcode     uint8
	Solicited  bool
	Migrated   bool
	Pad        uint8 // bytes of padding after the payload, 0-3
	Version    uint8 // transport header version, 4 bits; 0 is the only one
	PKey       hca.PKey
	FECN, BECN bool // congestion marks
	DestQPN    hca.QPN
	AckReq     bool
	PSN        uint32 // 24 bits
}

// Put writes h to the first BTHLen bytes of dst. It panics if dst is shorter.
// Values are truncated to the width of their fields. The receiver is a pointer because copying
// a BTH takes longer than writing it.
func (h *BTH) Put(dst []byte) {
	_ = dst[BTHLen-1]
	dst[0] = h.Opcode
	dst[1] = bit(h.Solicited, bthSolicited) | bit(h.Migrated, bthMigrated) |
		h.Pad&bthPadMask<<bthPadShift | h.Version&bthVersion
	binary.BigEndian.PutUint16(dst[2:], uint16(h.PKey))
	binary.BigEndian.PutUint32(dst[4:], uint32(h.DestQPN&hca.QPNMask))
	dst[bthResv8a] = bit(h.FECN, bthFECN) | bit(h.BECN, bthBECN)
	binary.BigEndian.PutUint32(dst[8:], h.PSN&bth24)
	dst[8] = bit(h.AckReq, bthAckReq)
}

// read sets all fields of h, of any opcode and version. It writes them in place, since a copy of a BTH takes longer.
func (h *BTH) read(src *[BTHLen]byte) {
	h.Opcode = src[0]
	h.Solicited = src[1]&bthSolicited != 0
	h.Migrated = src[1]&bthMigrated != 0
	h.Pad = src[1] >> bthPadShift & bthPadMask
	h.Version = src[1] & bthVersion
	h.PKey = hca.PKey(binary.BigEndian.Uint16(src[2:]))
	h.FECN = src[bthResv8a]&bthFECN != 0
	h.BECN = src[bthResv8a]&bthBECN != 0
	h.DestQPN = hca.QPN(binary.BigEndian.Uint32(src[4:])) & hca.QPNMask
	h.AckReq = src[8]&bthAckReq != 0
	h.PSN = binary.BigEndian.Uint32(src[8:]) & bth24
}

// bit returns b if on is set, else 0.
func bit(on bool, b uint8) uint8 {
	if on {
		return b
	}
	return 0
}
