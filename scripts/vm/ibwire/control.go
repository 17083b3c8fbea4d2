package ibwire

import (
	"encoding/binary"

	"ipoibd/hca"
)

// PKeys is the number of entries of an HCA's P_Key table.
const PKeys = 16

// Events is a set of events, by their numbers in the kernel (enum ib_event_type).
type Events uint32

// The events of a port.
const (
	PortActive       Events = 1 << 9
	PortErr          Events = 1 << 10
	LIDChange        Events = 1 << 11
	PKeyChange       Events = 1 << 12
	SMChange         Events = 1 << 13
	ClientReregister Events = 1 << 17
	GIDChange        Events = 1 << 18
)

// Offsets in a control frame.
const (
	offLID     = 8
	offSMLID   = 10
	offSMSL    = 12
	offLMC     = 13
	offState   = 14
	offMTU     = 15
	offEvents  = 16
	offPKeys   = 20
	controlLen = offPKeys + 2*PKeys
)

// Control is what a control frame sets: the attributes of a port, and events.
type Control struct {
	Prefix     uint64 // of the subnet: the upper half of its GIDs
	LID, SMLID uint16 // 0: not assigned
	SMSL       uint8  // 0-15
	LMC        uint8  // 0-7
	State      hca.PortState
	MTU        uint8 // code of IBA 14.2.5.6: 1 is 256 bytes, 5 is 4096
	Events     Events
	PKeys      [PKeys]hca.PKey
}

// Valid reports whether an HCA accepts the frame: each field is in its range.
func (c *Control) Valid() bool {
	return c.LID < FirstMulticast && c.SMLID < FirstMulticast && c.SMSL <= 15 && c.LMC <= 7 &&
		c.State >= hca.PortDown && c.State <= hca.PortActiveDefer && c.MTU >= 1 && c.MTU <= 5
}

// Append appends the body of the frame to b.
func (c *Control) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, c.Prefix)
	b = binary.BigEndian.AppendUint16(b, c.LID)
	b = binary.BigEndian.AppendUint16(b, c.SMLID)
	b = append(b, c.SMSL, c.LMC, uint8(c.State), c.MTU)
	b = binary.BigEndian.AppendUint32(b, uint32(c.Events))
	for _, key := range c.PKeys {
		b = binary.BigEndian.AppendUint16(b, uint16(key))
	}
	return b
}

// Parse reads the body of a control frame, as an HCA does. It returns false for one that an HCA
// ignores, such as an empty one.
func (c *Control) Parse(b []byte) bool {
	if len(b) < controlLen {
		return false
	}
	*c = Control{
		Prefix: binary.BigEndian.Uint64(b),
		LID:    binary.BigEndian.Uint16(b[offLID:]), SMLID: binary.BigEndian.Uint16(b[offSMLID:]),
		SMSL: b[offSMSL], LMC: b[offLMC], State: hca.PortState(b[offState]), MTU: b[offMTU],
		Events: Events(binary.BigEndian.Uint32(b[offEvents:])),
	}
	for i := range c.PKeys {
		c.PKeys[i] = hca.PKey(binary.BigEndian.Uint16(b[offPKeys+2*i:]))
	}
	return c.Valid()
}
