package record

import (
	"encoding/binary"
	"hash/crc32"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// Fields of a local route header (IBA 7.7). LNH says what follows.
const (
	lnhTransport = 2 // BTH
	lnhGlobal    = 3 // GRH
	lrhMaxWords  = 1<<11 - 1
	wordLen      = 4
)

// The header of an ERF record: a timestamp, which capture files ignore in favour of their own,
// the type, flags, and lengths.
const (
	erfType       = 8
	erfFlags      = 9
	erfRecord     = 10
	erfWire       = 14
	erfInfiniBand = 21
	erfVarying    = 1 << 2 // the record is as long as the packet
)

// infiniband returns the message as an InfiniBand packet in an ERF record.
func (b *Builder) infiniband(h *headers, msg []byte) []byte {
	wire := b.packet[erfLen:]
	start, lnh := lrhLen, uint16(lnhTransport)
	if h.global {
		start, lnh = lrhLen+hca.GRHLen, lnhGlobal
	}
	size := start + b.transport(wire[start:], h, msg)
	end := size + roce.ICRCLen
	binary.BigEndian.PutUint16(wire, uint16(h.sl&15)<<4|lnh)
	binary.BigEndian.PutUint16(wire[2:], h.dlid)
	binary.BigEndian.PutUint16(wire[4:], uint16(min(end/wordLen, lrhMaxWords)))
	binary.BigEndian.PutUint16(wire[6:], h.slid)
	if h.global {
		putGRH(wire[lrhLen:], h, end-start)
	}
	roce.PutICRC(wire[size:], icrc(wire[:size], h.global))
	clear(wire[end : end+vcrcLen])

	record := b.packet[:erfLen+end+vcrcLen]
	clear(record[:erfLen])
	record[erfType], record[erfFlags] = erfInfiniBand, erfVarying
	binary.BigEndian.PutUint16(record[erfRecord:], uint16(len(record)))
	binary.BigEndian.PutUint16(record[erfWire:], uint16(end+vcrcLen))
	return record
}

// icrc returns the invariant CRC of an InfiniBand packet (IBA 7.8.1), which is given from the
// LRH to the padding. Fields that may change on the way count as ones: the virtual lane; traffic
// class, flow label and hop limit; the byte of the BTH with the congestion marks. With a GRH,
// so does the whole LRH.
func icrc(packet []byte, global bool) uint32 {
	const resv8a = 4 // offset in the BTH
	masked, bth := make([]byte, lrhLen+hca.GRHLen+roce.BTHLen), lrhLen
	copy(masked, packet)
	masked[0] |= 0xf0
	if global {
		for i := range lrhLen {
			masked[i] = 0xff
		}
		bth += hca.GRHLen
		grh := masked[lrhLen:]
		grh[0] |= 0x0f
		grh[1], grh[2], grh[3], grh[7] = 0xff, 0xff, 0xff, 0xff
	}
	masked[bth+resv8a] = 0xff
	end := bth + roce.BTHLen
	return crc32.Update(crc32.ChecksumIEEE(masked[:end]), crc32.IEEETable, packet[end:])
}
