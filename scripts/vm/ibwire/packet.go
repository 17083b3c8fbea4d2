package ibwire

import (
	"encoding/binary"
	"errors"

	"ipoibd/hca"
)

// Lengths of the headers in bytes (IBA 7.7, 8.3, 9.2, 9.3.1, 7.8.1).
const (
	lrhLen  = 8
	grhLen  = hca.GRHLen
	bthLen  = 12
	dethLen = 8
	icrcLen = 4
)

// MaxPayload is the largest MTU of InfiniBand, in bytes.
const MaxPayload = 4096

// Ranges of LIDs (IBA 4.1.3).
const (
	FirstMulticast = 0xc000
	Permissive     = 0xffff
)

// Fields of the LRH (IBA 7.7), the BTH (IBA 9.2) and the GRH (IBA 8.3).
const (
	lnhMask, lnhLocal, lnhGlobal = 3, 2, 3 // what follows the LRH: a BTH, or a GRH
	lrhWords                     = 0x7ff   // mask of the length
	opcodeUD                     = 0x64
	nextIBA                      = 0x1b
)

// Reasons why a packet cannot be parsed.
var (
	ErrShort  = errors.New("ibwire: packet too short")
	ErrLength = errors.New("ibwire: the length in the LRH does not fit the packet")
	ErrHeader = errors.New("ibwire: neither a BTH nor a GRH follows the LRH")
	ErrOpcode = errors.New("ibwire: not a UD SEND")
)

// Packet is a UD SEND.
type Packet struct {
	SLID, DLID uint16
	SL         uint8 // 4 bits
	Global     bool  // with a GRH
	SGID, DGID hca.GID
	PKey       hca.PKey
	DestQPN    hca.QPN
	PSN        uint32 // 24 bits
	QKey       hca.QKey
	SrcQPN     hca.QPN
	Payload    []byte // at most MaxPayload
}

// IsMulticast reports whether a LID is that of a group.
func IsMulticast(lid uint16) bool { return lid >= FirstMulticast && lid != Permissive }

// Parse reads a packet, which Ethernet may have padded. The payload remains part of b.
func (p *Packet) Parse(b []byte) error {
	if len(b) < lrhLen+bthLen+dethLen+icrcLen {
		return ErrShort
	}
	*p = Packet{
		SL: b[1] >> 4, DLID: binary.BigEndian.Uint16(b[2:]), SLID: binary.BigEndian.Uint16(b[6:]),
		Global: b[1]&lnhMask == lnhGlobal,
	}
	if !p.Global && b[1]&lnhMask != lnhLocal {
		return ErrHeader
	}
	n := int(binary.BigEndian.Uint16(b[4:])&lrhWords) * 4
	head := lrhLen + bthLen + dethLen
	if p.Global {
		head += grhLen
	}
	if n > len(b) || n < head+icrcLen {
		return ErrLength
	}
	bth := b[head-bthLen-dethLen : head]
	pad := int(bth[1] >> 4 & 3)
	if n < head+pad+icrcLen || n > head+MaxPayload+icrcLen {
		return ErrLength
	}
	if bth[0] != opcodeUD {
		return ErrOpcode
	}
	if p.Global {
		copy(p.SGID[:], b[lrhLen+8:])
		copy(p.DGID[:], b[lrhLen+24:])
	}
	p.PKey = hca.PKey(binary.BigEndian.Uint16(bth[2:]))
	p.DestQPN = hca.QPN(binary.BigEndian.Uint32(bth[4:])) & hca.QPNMask
	p.PSN = binary.BigEndian.Uint32(bth[8:]) & 0xffffff
	p.QKey = hca.QKey(binary.BigEndian.Uint32(bth[12:]))
	p.SrcQPN = hca.QPN(binary.BigEndian.Uint32(bth[16:])) & hca.QPNMask
	p.Payload = b[head : n-pad-icrcLen]
	return nil
}

// SetSLID replaces the SLID of a packet that Parse accepts.
func SetSLID(b []byte, lid uint16) { binary.BigEndian.PutUint16(b[6:], lid) }

// Append appends the packet to b. A GRH has hop limit 0 and no flow label.
func (p *Packet) Append(b []byte) []byte {
	pad := -len(p.Payload) & 3
	tail := len(p.Payload) + pad + icrcLen
	size := lrhLen + bthLen + dethLen + tail
	lnh := uint8(lnhLocal)
	if p.Global {
		size += grhLen
		lnh = lnhGlobal
	}
	b = append(b, 0, p.SL<<4|lnh)
	b = binary.BigEndian.AppendUint16(b, p.DLID)
	b = binary.BigEndian.AppendUint16(b, uint16(size/4))
	b = binary.BigEndian.AppendUint16(b, p.SLID)
	if p.Global {
		b = append(b, 0x60, 0, 0, 0) // version 6
		b = binary.BigEndian.AppendUint16(b, uint16(bthLen+dethLen+tail))
		b = append(b, nextIBA, 0)
		b = append(append(b, p.SGID[:]...), p.DGID[:]...)
	}
	b = append(b, opcodeUD, uint8(pad)<<4)
	b = binary.BigEndian.AppendUint16(b, uint16(p.PKey))
	b = binary.BigEndian.AppendUint32(b, uint32(p.DestQPN&hca.QPNMask))
	b = binary.BigEndian.AppendUint32(b, p.PSN&0xffffff)
	b = binary.BigEndian.AppendUint32(b, uint32(p.QKey))
	b = binary.BigEndian.AppendUint32(b, uint32(p.SrcQPN&hca.QPNMask))
	return append(append(b, p.Payload...), make([]byte, pad+icrcLen)...)
}
