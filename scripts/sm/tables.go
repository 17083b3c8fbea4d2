package sm

import (
	"encoding/binary"
	"math/bits"

	"ipoibd/scripts/vm/ibwire"
)

// The tables of a switch are read in blocks of 64 bytes: 64 ports of the linear table, or 32 masks of the table of
// groups (IBA 14.2.5.10, 14.2.5.12).
const (
	linearBlock = dataSize
	groupBlock  = dataSize / 2
)

// noPort in the linear table means that a LID is not reachable (IBA 14.2.5.10).
const noPort = 0xff

// portMask is a set of switch ports: bit n is port n. Port 0 is the switch itself. One position of the table of
// groups covers 16 ports.
type portMask uint16

// ports returns the ports of the set in ascending order.
func (m portMask) ports() (list []uint8) {
	for ; m != 0; m &= m - 1 {
		list = append(list, uint8(bits.TrailingZeros16(uint16(m))))
	}
	return list
}

// tables are a switch's forwarding tables, as a subnet manager has written them.
type tables struct {
	linear []uint8    // port by LID
	groups []portMask // by MLID - ibwire.FirstMulticast
}

// unicast returns the port for a LID, or false if there is none.
func (t *tables) unicast(lid uint16) (port uint8, ok bool) {
	if int(lid) >= len(t.linear) || t.linear[lid] == noPort {
		return 0, false
	}
	return t.linear[lid], true
}

// multicast returns the ports of a group.
func (t *tables) multicast(mlid uint16) portMask {
	i := int(mlid) - ibwire.FirstMulticast
	if i < 0 || i >= len(t.groups) {
		return 0
	}
	return t.groups[i]
}

// Offsets in SwitchInfo (IBA 14.2.5.4).
const (
	offLinearCap = 0
	offGroupCap  = 4
	offLinearTop = 6
)

// tableSizes returns how many entries of each table to read, from the data of a SwitchInfo: of the linear one up to the
// highest LID in it, of that of groups all.
func tableSizes(info []byte) (linear, groups int) {
	top := int(binary.BigEndian.Uint16(info[offLinearTop:])) + 1
	linear = min(top, int(binary.BigEndian.Uint16(info[offLinearCap:])), ibwire.FirstMulticast)
	groups = min(int(binary.BigEndian.Uint16(info[offGroupCap:])), ibwire.Permissive-ibwire.FirstMulticast)
	return linear, groups
}

// addGroups appends a block of the table of groups.
func (t *tables) addGroups(block []byte) {
	for i := range groupBlock {
		t.groups = append(t.groups, portMask(binary.BigEndian.Uint16(block[2*i:])))
	}
}
