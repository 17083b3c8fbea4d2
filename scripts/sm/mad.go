package sm

import (
	"encoding/binary"
	"fmt"

	"ipoibd/hca"
)

// Offsets in the header of a management packet (IBA 13.4.3), and in one by a directed route (IBA 14.2.1.2).
const (
	offClass    = 1
	offMethod   = 3
	offStatus   = 4
	offHopCount = 7 // directed route only
	offTID      = 8
	offAttr     = 16
	offModifier = 20
	offDRLIDs   = 32 // the LIDs at which the directed part begins and ends
	offData     = 64 // of a subnet management packet
	dataSize    = 64
	offPath     = 128 // ports of the directed route, from the second byte
)

// Classes, methods and statuses (IBA 13.4.4 to 13.4.7).
const (
	classDirected = 0x81 // subnet management by a directed route
	classSA       = 0x03
	methodGet     = 0x01
	methodSet     = 0x02
	methodDelete  = 0x15
	responseBit   = 0x80
	statusBusy    = 0x0001
	statusMask    = 0x7fff // without the direction bit of a directed route
)

// Attributes of subnet management (IBA 14.2.5).
const (
	attrSwitchInfo = 0x0012
	attrLinear     = 0x0019
	attrMulticast  = 0x001b
)

// statusError is a status of the SA that is not success (IBA 15.2.1.2).
type statusError uint16

// saInvalid means that the request is not valid, for example that the member does not exist.
const saInvalid statusError = 0x0200

func (e statusError) Error() string { return fmt.Sprintf("status %#04x of the SA", uint16(e)) }

// The management queue pairs (IBA 13.5.1) and the Q_Key of the general one.
const (
	qpSubnet  = 0
	qpGeneral = 1
	qkeyGS    = hca.QKey(0x80010000)
)

// tidMask is the part of a transaction ID that ibsim leaves alone; it overwrites the upper 16 bits of requests.
const tidMask = 1<<48 - 1

func tidOf(mad []byte) uint64         { return binary.BigEndian.Uint64(mad[offTID:]) }
func setTID(mad []byte, tid uint64)   { binary.BigEndian.PutUint64(mad[offTID:], tid) }
func statusOf(mad []byte) uint16      { return binary.BigEndian.Uint16(mad[offStatus:]) }
func setStatus(mad []byte, to uint16) { binary.BigEndian.PutUint16(mad[offStatus:], to) }

// getFromSwitch returns a request for an attribute of the switch next to a port, by a directed route of one hop.
func getFromSwitch(tid uint64, attr uint16, modifier uint32) (mad [madLen]byte) {
	mad[0], mad[offClass], mad[2], mad[offMethod] = 1, classDirected, 1, methodGet
	mad[offHopCount] = 1
	setTID(mad[:], tid)
	binary.BigEndian.PutUint16(mad[offAttr:], attr)
	binary.BigEndian.PutUint32(mad[offModifier:], modifier)
	binary.BigEndian.PutUint32(mad[offDRLIDs:], 0xffffffff) // the route is directed from end to end
	mad[offPath+1] = 1                                      // out of the port
	return mad
}

// SA packets (IBA 15.2.1.1) and the record of a group's member (IBA 15.2.5.17).
const (
	saVersion    = 2
	offMask      = 48
	offRecord    = 56
	attrMCMember = 0x0038

	recMGID      = 0
	recPortGID   = 16
	recQKey      = 32
	recMLID      = 36
	recMTU       = 38
	recClass     = 39
	recPKey      = 40
	recRate      = 42
	recSLFlowHop = 44 // SL 4 bits, flow label 20, hop limit 8
	recJoinState = 48 // scope 4 bits, state 4
	recLen       = 52

	// The components that name a group, those that also name its member and the P_Key, and those with which a join also
	// creates the group: Q_Key, MTU, traffic class, rate, SL, flow label and hop limit.
	maskMGID   = 0x1
	maskJoin   = 0x10083
	maskCreate = 0x173f7

	exactly  = 2 << 6 // selector of MTU and rate
	fullJoin = 1
)

// Group is a group at the SA.
type Group struct {
	MGID  hca.GID
	MLID  uint16
	QKey  hca.QKey
	PKey  hca.PKey
	MTU   uint8 // code of IBA 14.2.5.6
	Rate  uint8 // code of IBA 15.2.5.16
	SL    uint8 // 4 bits
	Scope uint8 // 4 bits
}

// groupRequest returns a request for a group.
func groupRequest(mgid hca.GID) []byte {
	mad := make([]byte, madLen)
	mad[0], mad[offClass], mad[2], mad[offMethod] = 1, classSA, saVersion, methodGet
	binary.BigEndian.PutUint16(mad[offAttr:], attrMCMember)
	binary.BigEndian.PutUint64(mad[offMask:], maskMGID)
	copy(mad[offRecord+recMGID:], mgid[:])
	return mad
}

// joinRequest returns a request of a port to join a group as a full member, or to leave it. With a Q_Key the join
// creates the group if it does not exist.
func joinRequest(method byte, g *Group, port hca.GID) []byte {
	mad := groupRequest(g.MGID)
	mad[offMethod] = method
	mask := uint64(maskJoin)
	rec := mad[offRecord:]
	copy(rec[recPortGID:], port[:])
	binary.BigEndian.PutUint16(rec[recPKey:], uint16(g.PKey))
	rec[recJoinState] = g.Scope<<4 | fullJoin
	if g.QKey != 0 {
		mask = maskCreate
		binary.BigEndian.PutUint32(rec[recQKey:], uint32(g.QKey))
		rec[recMTU] = exactly | g.MTU
		rec[recRate] = exactly | g.Rate
		rec[recSLFlowHop] = g.SL << 4
	}
	binary.BigEndian.PutUint64(mad[offMask:], mask)
	return mad
}

// parseGroup reads the group from an SA packet of at least the length of a MAD.
func parseGroup(mad []byte) (g Group) {
	rec := mad[offRecord:]
	const code = 1<<6 - 1 // without the selector
	return Group{
		MGID: hca.GID(rec[recMGID:recPortGID]), QKey: hca.QKey(binary.BigEndian.Uint32(rec[recQKey:])),
		MLID: binary.BigEndian.Uint16(rec[recMLID:]), PKey: hca.PKey(binary.BigEndian.Uint16(rec[recPKey:])),
		MTU: rec[recMTU] & code, Rate: rec[recRate] & code, SL: rec[recSLFlowHop] >> 4, Scope: rec[recJoinState] >> 4,
	}
}
