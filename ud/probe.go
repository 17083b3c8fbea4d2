package ud

import (
	"encoding/binary"
	"sync/atomic"

	"ipoibd/ud/ipoib"
)

// A probe is a message that a queue pair sends to itself, to prove that both its
// queues work: the IPoIB header with an EtherType for local experiments (IEEE
// 802, clause 9.2.3), which IPoIB never carries, then a big-endian number.
const (
	probeType = ipoib.EtherType(0x88b5)
	probeLen  = ipoib.HeaderLen + 8
)

// ProbeMessage returns the message of probe n, for [Tx.Inject] to the queue
// pair's own address. [Tx.Progress] reports when its send has completed.
func ProbeMessage(n uint64) []byte {
	msg := make([]byte, ipoib.HeaderLen, probeLen)
	ipoib.PutHeader(msg, probeType)
	return binary.BigEndian.AppendUint64(msg, n)
}

// probeNumber returns the number of a message made by ProbeMessage; ok is false for
// other messages.
func probeNumber(msg []byte) (n uint64, ok bool) {
	if len(msg) != probeLen || binary.BigEndian.Uint16(msg) != uint16(probeType) {
		return 0, false
	}
	return binary.BigEndian.Uint64(msg[ipoib.HeaderLen:]), true
}

// isProbe reports whether a message is our own probe: unicast, and from our own
// address.
func (r *rxRules) isProbe(m *message) bool {
	return m.typ == probeType && m.end == rxMessage+probeLen && !m.from.Multicast &&
		r.peers != nil && r.peers.Self(m.from.UDSource)
}

// TxProgress is the progress of sends, over all queue pairs so far.
type TxProgress struct {
	Completed uint64 // sends that have completed
	Waiting   int    // sends posted but not completed, or waiting to be posted
	Refused   uint64 // sends that the QP refused although its queue was not full
	Probed    uint64 // number of the latest probe whose send has completed; 0 if none
}

// Progress returns the progress of sends. Any goroutine may call it. It counts a send that
// moves on meanwhile twice rather than not at all.
func (t *Tx) Progress() TxProgress {
	waiting := t.queued()
	waiting += t.Outstanding()
	return TxProgress{
		Completed: t.ring.stats.completions.Load(), Waiting: waiting,
		Refused: t.tally[PostRefused].Load(), Probed: t.probe.done.Load(),
	}
}

// Completed returns the number of completed receives, over all queue pairs so far.
// Any goroutine may call it.
func (r *Rx) Completed() uint64 { return r.ring.stats.completions.Load() }

// sentProbe tracks the latest probe through the send queue.
type sentProbe struct {
	number uint64 // 0 if none is outstanding
	slot   uint32
	done   atomic.Uint64 // number of the latest probe whose send has completed
}

// track notes the message in a slot if it is a probe.
func (p *sentProbe) track(slot uint32, msg []byte) {
	if n, ok := probeNumber(msg); ok {
		p.number, p.slot = n, slot
	}
}

// released notes that a slot was released, with or without a completion.
func (p *sentProbe) released(slot uint32, completed bool) {
	if p.number == 0 || slot != p.slot {
		return
	}
	if completed {
		p.done.Store(p.number)
	}
	p.number = 0
}
