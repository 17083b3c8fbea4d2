package mad

import (
	"encoding/binary"

	"ipoibd/hca"
)

// Fields of an MCMemberRecord (IBA 15.2.5.17).
const (
	mcMGID      = 0
	mcPortGID   = 16
	mcQKey      = 32
	mcMLID      = 36
	mcMTU       = 38
	mcClass     = 39
	mcPKey      = 40
	mcRate      = 42
	mcLifetime  = 43
	mcRouting   = 44 // SL:4, flow label:20, hop limit:8
	mcScopeJoin = 48 // scope:4, JoinState:4
	mcProxyJoin = 49 // 1 bit

	memberRecordLen = 52

	proxyJoin = 1 << 7
)

// Multicast LIDs (IBA 4.1.3); the last LID, 0xffff, is permissive.
const (
	minMLID = 0xc000
	maxMLID = 0xfffe
)

// JoinState are the ways in which a port belongs to a group, a bit for each (IBA 15.2.5.17).
type JoinState uint8

// Join states.
const (
	JoinFull         JoinState = 1 << iota // sends and receives
	JoinNonMember                          // receives; does not keep the group alive
	JoinSendOnly                           // only sends; does not create or keep the group
	JoinSendOnlyFull                       // only sends, but creates and keeps the group; see CapSendOnlyFull
)

// MCMember is an MCMemberRecord: a multicast group, and a port's membership.
type MCMember struct {
	MGID      hca.GID
	PortGID   hca.GID
	QKey      hca.QKey
	MLID      uint16
	MTU       Selected[MTUCode]
	PKey      hca.PKey
	Rate      Selected[Rate]
	Lifetime  Selected[TimeCode]
	SL        uint8 // 0-15
	Routing   Routing
	Scope     uint8     // 4 bits, of the MGID
	JoinState JoinState // 4 bits
	ProxyJoin bool
}

// Put writes r to the first 52 bytes of data.
func (r *MCMember) Put(data []byte) {
	data = data[:memberRecordLen]
	clear(data)
	copy(data[mcMGID:mcPortGID], r.MGID[:])
	copy(data[mcPortGID:mcQKey], r.PortGID[:])
	binary.BigEndian.PutUint32(data[mcQKey:], uint32(r.QKey))
	binary.BigEndian.PutUint16(data[mcMLID:], r.MLID)
	data[mcMTU], data[mcClass] = r.MTU.pack(), r.Routing.Class
	binary.BigEndian.PutUint16(data[mcPKey:], uint16(r.PKey))
	data[mcRate], data[mcLifetime] = r.Rate.pack(), r.Lifetime.pack()
	binary.BigEndian.PutUint32(data[mcRouting:], r.Routing.word(r.SL))
	data[mcScopeJoin] = r.Scope<<4 | byte(r.JoinState)&0xf
	if r.ProxyJoin {
		data[mcProxyJoin] = proxyJoin
	}
}

// Parse sets all fields of r.
func (r *MCMember) Parse(data []byte) error {
	if len(data) < memberRecordLen {
		return FieldError("MCMemberRecord length")
	}
	word := binary.BigEndian.Uint32(data[mcRouting:])
	*r = MCMember{
		MGID:      hca.GID(data[mcMGID:]),
		PortGID:   hca.GID(data[mcPortGID:]),
		QKey:      hca.QKey(binary.BigEndian.Uint32(data[mcQKey:])),
		MLID:      binary.BigEndian.Uint16(data[mcMLID:]),
		MTU:       unpack[MTUCode](data[mcMTU]),
		PKey:      hca.PKey(binary.BigEndian.Uint16(data[mcPKey:])),
		Rate:      unpack[Rate](data[mcRate]),
		Lifetime:  unpack[TimeCode](data[mcLifetime]),
		SL:        uint8(word >> 28),
		Routing:   routing(data[mcClass], word),
		Scope:     data[mcScopeJoin] >> 4,
		JoinState: JoinState(data[mcScopeJoin] & 0xf),
		ProxyJoin: data[mcProxyJoin]&proxyJoin != 0,
	}
	return nil
}

// Check reports the first field that makes the answer to a join unusable.
func (r *MCMember) Check() error {
	switch {
	case r.MGID[0] != 0xff:
		return FieldError("MCMemberRecord.MGID")
	case r.MLID < minMLID || r.MLID > maxMLID:
		return FieldError("MCMemberRecord.MLID")
	case r.MTU.Value.MTU() == 0:
		return FieldError("MCMemberRecord.MTU")
	case !r.Rate.Value.Known():
		return FieldError("MCMemberRecord.Rate")
	case r.JoinState == 0:
		return FieldError("MCMemberRecord.JoinState")
	}
	return nil
}
