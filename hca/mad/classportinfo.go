package mad

import (
	"encoding/binary"

	"ipoibd/hca"
)

// Fields of a ClassPortInfo (IBA 13.4.8.1).
const (
	cpiBaseVersion  = 0
	cpiClassVersion = 1
	cpiMask         = 2
	cpiMask2        = 4 // 27 bits, then RespTimeValue
	cpiRedirectGID  = 8
	cpiRedirectWord = 24 // class, SL, flow label
	cpiRedirectLID  = 28
	cpiRedirectPKey = 30
	cpiRedirectQPN  = 32 // 8 reserved bits, then 24
	cpiRedirectQKey = 36

	classPortInfoLen = 72

	respTimeBits = 5
)

// CapSendOnlyFull is the bit of [ClassPortInfo.Capability2] that says that the SA knows
// [JoinSendOnlyFull] (in Linux IB_SA_CAP_MASK2_SENDONLY_FULL_MEM_SUPPORT).
const CapSendOnlyFull = 1 << 12

// ClassPortInfo describes the SA. The addresses for traps are left out.
type ClassPortInfo struct {
	BaseVersion  uint8
	ClassVersion uint8
	Capability   uint16
	Capability2  uint32   // 27 bits
	RespTime     TimeCode // 5 bits: how long the SA takes to answer
	Redirect     Redirect
}

// Redirect is where requests should go if the status of an answer says so.
type Redirect struct {
	GID  hca.GID
	LID  uint16 // 0: the port that answers
	PKey hca.PKey
	QPN  hca.QPN
	QKey hca.QKey
}

// Put writes c to the first 72 bytes of data.
func (c *ClassPortInfo) Put(data []byte) {
	data = data[:classPortInfoLen]
	clear(data)
	data[cpiBaseVersion], data[cpiClassVersion] = c.BaseVersion, c.ClassVersion
	binary.BigEndian.PutUint16(data[cpiMask:], c.Capability)
	binary.BigEndian.PutUint32(data[cpiMask2:], c.Capability2<<respTimeBits|uint32(c.RespTime)&(1<<respTimeBits-1))
	copy(data[cpiRedirectGID:cpiRedirectWord], c.Redirect.GID[:])
	binary.BigEndian.PutUint16(data[cpiRedirectLID:], c.Redirect.LID)
	binary.BigEndian.PutUint16(data[cpiRedirectPKey:], uint16(c.Redirect.PKey))
	binary.BigEndian.PutUint32(data[cpiRedirectQPN:], uint32(c.Redirect.QPN&hca.QPNMask))
	binary.BigEndian.PutUint32(data[cpiRedirectQKey:], uint32(c.Redirect.QKey))
}

// Parse sets all fields of c.
func (c *ClassPortInfo) Parse(data []byte) error {
	if len(data) < classPortInfoLen {
		return FieldError("ClassPortInfo length")
	}
	masks := binary.BigEndian.Uint32(data[cpiMask2:])
	*c = ClassPortInfo{
		BaseVersion: data[cpiBaseVersion], ClassVersion: data[cpiClassVersion],
		Capability:  binary.BigEndian.Uint16(data[cpiMask:]),
		Capability2: masks >> respTimeBits,
		RespTime:    TimeCode(masks & (1<<respTimeBits - 1)),
		Redirect: Redirect{
			GID:  hca.GID(data[cpiRedirectGID:]),
			LID:  binary.BigEndian.Uint16(data[cpiRedirectLID:]),
			PKey: hca.PKey(binary.BigEndian.Uint16(data[cpiRedirectPKey:])),
			QPN:  hca.QPN(binary.BigEndian.Uint32(data[cpiRedirectQPN:])) & hca.QPNMask,
			QKey: hca.QKey(binary.BigEndian.Uint32(data[cpiRedirectQKey:])),
		},
	}
	return nil
}
