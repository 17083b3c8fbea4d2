package mad

import (
	"encoding/binary"

	"ipoibd/hca"
)

// Fields of a PathRecord (IBA 15.2.5.16).
const (
	prServiceID  = 0
	prDGID       = 8
	prSGID       = 24
	prDLID       = 40
	prSLID       = 42
	prRouting    = 44 // raw:1, reserved:3, flow label:20, hop limit:8
	prClass      = 48
	prNumbPath   = 49 // reversible:1, number of paths:7
	prPKey       = 50
	prQoS        = 52 // QoS class:12, SL:4
	prMTU        = 54
	prRate       = 55
	prLifetime   = 56
	prPreference = 57

	pathRecordLen = 64

	rawTop     = 1 << 3 // of the four bits before the flow label
	reversible = 1 << 7
)

// maxLID is the last unicast LID (IBA 4.1.3).
const maxLID = 0xbfff

// Path is a PathRecord: a way between two ports.
type Path struct {
	ServiceID  uint64
	DGID, SGID hca.GID
	DLID, SLID uint16
	Raw        bool // for raw packets
	Routing    Routing
	Reversible bool
	NumbPath   uint8 // 7 bits; in a request: how many records are wanted
	PKey       hca.PKey
	QoSClass   uint16 // 12 bits
	SL         uint8  // 0-15
	MTU        Selected[MTUCode]
	Rate       Selected[Rate]
	Lifetime   Selected[TimeCode]
	Preference uint8
}

// Put writes r to the first 64 bytes of data.
func (r *Path) Put(data []byte) {
	data = data[:pathRecordLen]
	clear(data)
	binary.BigEndian.PutUint64(data[prServiceID:], r.ServiceID)
	copy(data[prDGID:prSGID], r.DGID[:])
	copy(data[prSGID:prDLID], r.SGID[:])
	binary.BigEndian.PutUint16(data[prDLID:], r.DLID)
	binary.BigEndian.PutUint16(data[prSLID:], r.SLID)
	var top uint8
	if r.Raw {
		top = rawTop
	}
	binary.BigEndian.PutUint32(data[prRouting:], r.Routing.word(top))
	data[prClass], data[prNumbPath] = r.Routing.Class, r.NumbPath&^reversible
	if r.Reversible {
		data[prNumbPath] |= reversible
	}
	binary.BigEndian.PutUint16(data[prPKey:], uint16(r.PKey))
	binary.BigEndian.PutUint16(data[prQoS:], r.QoSClass<<4|uint16(r.SL&0xf))
	data[prMTU], data[prRate], data[prLifetime] = r.MTU.pack(), r.Rate.pack(), r.Lifetime.pack()
	data[prPreference] = r.Preference
}

// Parse sets all fields of r.
func (r *Path) Parse(data []byte) error {
	if len(data) < pathRecordLen {
		return FieldError("PathRecord length")
	}
	word, qos := binary.BigEndian.Uint32(data[prRouting:]), binary.BigEndian.Uint16(data[prQoS:])
	*r = Path{
		ServiceID:  binary.BigEndian.Uint64(data[prServiceID:]),
		DGID:       hca.GID(data[prDGID:]),
		SGID:       hca.GID(data[prSGID:]),
		DLID:       binary.BigEndian.Uint16(data[prDLID:]),
		SLID:       binary.BigEndian.Uint16(data[prSLID:]),
		Raw:        word>>28&rawTop != 0,
		Routing:    routing(data[prClass], word),
		Reversible: data[prNumbPath]&reversible != 0,
		NumbPath:   data[prNumbPath] &^ reversible,
		PKey:       hca.PKey(binary.BigEndian.Uint16(data[prPKey:])),
		QoSClass:   qos >> 4,
		SL:         uint8(qos & 0xf),
		MTU:        unpack[MTUCode](data[prMTU]),
		Rate:       unpack[Rate](data[prRate]),
		Lifetime:   unpack[TimeCode](data[prLifetime]),
		Preference: data[prPreference],
	}
	return nil
}

// Check reports the first field that makes the answer to a query for one path unusable.
func (r *Path) Check() error {
	switch {
	case r.DLID == 0 || r.DLID > maxLID:
		return FieldError("PathRecord.DLID")
	case r.SLID == 0 || r.SLID > maxLID:
		return FieldError("PathRecord.SLID")
	case r.MTU.Value.MTU() == 0:
		return FieldError("PathRecord.MTU")
	case !r.Rate.Value.Known():
		return FieldError("PathRecord.Rate")
	}
	return nil
}
