package ud

import (
	"encoding/binary"

	"ipoibd/ud/ipoib"
)

// A probe is a message that a queue pair sends to itself, to prove that both its
// queues work: the IPoIB header with a type for local experiments (IEEE 802,
// clause 9.2.3), which no IPoIB carries, then a number, big endian.
const (
	probeType = ipoib.EtherType(0x88b5)
	probeLen  = ipoib.HeaderLen + 8
)

// ProbeMessage returns the message of probe n, for [Tx.Inject] to the queue
// pair's own address. What comes back is told by [Rx.Probed].
func ProbeMessage(n uint64) []byte {
	msg := make([]byte, ipoib.HeaderLen, probeLen)
	ipoib.PutHeader(msg, probeType)
	return binary.BigEndian.AppendUint64(msg, n)
}

// probeNumber reads what ProbeMessage made.
func probeNumber(msg []byte) uint64 {
	return binary.BigEndian.Uint64(msg[ipoib.HeaderLen:probeLen])
}

// isProbe reports whether a message is a probe of our own: from our address to
// our address alone.
func (r *rxRules) isProbe(m *message) bool {
	return m.typ == probeType && m.end == rxMessage+probeLen && !m.from.Multicast &&
		r.peers != nil && r.peers.Self(m.from.GID, m.from.QPN)
}

// Progress is how far a queue has come, over all queue pairs so far.
type Progress struct {
	Posted    uint64 // work requests
	Completed uint64 // of them, with a completion
	TakenBack uint64 // of them, dropped when their queue pair was detached
}

func (s *ringStats) progress() Progress {
	return Progress{Posted: s.posts.Load(), Completed: s.completions.Load(), TakenBack: s.reset.Load()}
}

// Progress may be called by any goroutine.
func (t *Tx) Progress() Progress { return t.ring.stats.progress() }

// Progress may be called by any goroutine.
func (r *Rx) Progress() Progress { return r.ring.stats.progress() }

// Probed returns the number of the probe that came back last, 0 before the
// first. Any goroutine may call it.
func (r *Rx) Probed() uint64 { return r.probed.Load() }
