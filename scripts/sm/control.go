package sm

import (
	"encoding/binary"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// Offsets in PortInfo (IBA 14.2.5.6).
const (
	infoPrefix = 8
	infoLID    = 16
	infoSMLID  = 18
	infoState  = 32 // low 4 bits
	infoLMC    = 34 // low 3 bits
	infoMTUSL  = 36 // MTU in use 4 bits, SM SL 4
	infoLen    = 64
)

// defaultMTU is the code of ibsim's only MTU, 2048. A port that the subnet manager has not configured reports none.
const defaultMTU = 4

// attributes returns the attributes of a port from its PortInfo and its first P_Keys.
func attributes(info, pkeys []byte) (c ibwire.Control) {
	c = ibwire.Control{
		Prefix: binary.BigEndian.Uint64(info[infoPrefix:]),
		LID:    binary.BigEndian.Uint16(info[infoLID:]), SMLID: binary.BigEndian.Uint16(info[infoSMLID:]),
		SMSL: info[infoMTUSL] & 15, LMC: info[infoLMC] & 7, State: hca.PortState(info[infoState] & 15), MTU: info[infoMTUSL] >> 4,
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	for i := range c.PKeys {
		c.PKeys[i] = hca.PKey(binary.BigEndian.Uint16(pkeys[2*i:]))
	}
	return c
}

// mtuBytes returns the number of bytes for the code of an MTU.
func mtuBytes(code uint8) int { return 128 << code }

// changes returns the events by which an HCA reports the way from old to current attributes. The zero value of old is
// a port that has just come up.
func changes(old, current *ibwire.Control) (events ibwire.Events) {
	for event, changed := range map[ibwire.Events]bool{
		ibwire.PortActive: current.State == hca.PortActive && old.State != hca.PortActive,
		ibwire.PortErr:    current.State != hca.PortActive && old.State == hca.PortActive,
		ibwire.LIDChange:  current.LID != old.LID || current.LMC != old.LMC,
		ibwire.SMChange:   current.SMLID != old.SMLID || current.SMSL != old.SMSL,
		ibwire.PKeyChange: current.PKeys != old.PKeys,
		ibwire.GIDChange:  current.Prefix != old.Prefix,
	} {
		if changed {
			events |= event
		}
	}
	return events
}
