package record

import (
	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// etherLen is the length of an Ethernet header (IEEE 802.3, 3.1.1), whose last two bytes are
// the type.
const (
	etherLen  = 14
	etherType = 12
)

// Kind is what a record holds.
type Kind uint8

// Kinds of record.
const (
	Frame   Kind = iota // an Ethernet frame of the TAP
	Message             // a message of the fabric
	// NumKind is the number of kinds, for tables.
	NumKind
)

// Origin is the address of the interface on the fabric. It is read-only.
type Origin struct {
	GID  hca.GID
	LID  uint16 // InfiniBand only
	QPN  hca.QPN
	QKey hca.QKey
	PKey hca.PKey
}

// Record describes one frame or message. A large one counts as one record.
type Record struct {
	At   int64 // nanoseconds since 1970, UTC
	Kind Kind
	Out  bool   // from the host to the fabric
	Lost uint64 // packets of this kind that the recorder has lost since its previous record of it

	// Data is the Ethernet frame. For a message it is an Ethernet header without addresses,
	// and what follows the IPoIB header. It belongs to the recorder.
	Data []byte

	// The fields below describe a message.
	head    [ipoib.HeaderLen]byte // its IPoIB header
	headLen uint8                 // less than HeaderLen if the message is that short
	self    Origin
	mss     int // of a large send or receive; else 0

	// Of a sent message.
	to      hca.AHSpec
	qpn     hca.QPN
	qkey    hca.QKey
	headers int // length of a large send's header, from the IPoIB header on

	// Of a received message.
	grh [hca.GRHLen]byte
	wc  hca.WC
}
