package ud

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

func TestEpochFollowsSnapshotWhenIdle(t *testing.T) {
	b := newTxBench(t, 128)
	if got := b.Epoch(); got != 1 {
		t.Errorf("epoch initially: %d, want 1", got)
	}
	b.snap.Publish(newPeers(5))
	if got := b.Epoch(); got != 1 {
		t.Errorf("before a Pump has used the snapshot: %d", got)
	}
	b.pump(t)
	if got := b.Epoch(); got != 5 {
		t.Errorf("after that Pump: %d", got)
	}
}

func TestEpochWaitsForCompletion(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100))
	b.pump(t) // posted from snapshot 1
	b.snap.Publish(newPeers(2))
	b.pump(t)
	b.snap.Publish(newPeers(3))
	b.src.add(toB(100))
	b.pump(t) // posted from snapshot 3
	if got := b.Epoch(); got != 1 {
		t.Errorf("with a send of snapshot 1 outstanding: %d", got)
	}
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	if got := b.Epoch(); got != 2 {
		t.Errorf("with a send of snapshot 3 outstanding: %d, want 2, observed before it", got)
	}
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	if got := b.Epoch(); got != 3 {
		t.Errorf("epoch of an idle Tx: %d, want 3", got)
	}
}

// A frame is routed by the snapshot that is current after it was read, even if
// that was published while the read blocked.
func TestEpochOfBlockedRead(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.onRead = func() { b.snap.Publish(newPeers(2)) }
	b.src.add(toB(100))
	b.pump(t)
	if got := b.Epoch(); got > 2 {
		t.Errorf("epoch %d, want 2 at most", got)
	}
}

// A queued message keeps its snapshot, even if a later one is published before
// Tx takes the message.
func TestEpochKeepsInjected(t *testing.T) {
	b := newTxBench(t, 128)
	arp := msg(ipoib.EtherTypeARP, make([]byte, 56))
	b.src.onRead = func() {
		b.src.onRead = nil
		b.Inject(destB, arp) // uses an AH of snapshot 1
		b.snap.Publish(newPeers(2))
	}
	b.pump(t)
	for range 3 {
		b.pump(t)
		if got := b.Epoch(); got != 1 {
			t.Errorf("with the message in flight: %d", got)
		}
	}
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	if got := b.Epoch(); got != 2 {
		t.Errorf("at the end: %d", got)
	}
}

// The same for more messages than one Pump sends.
func TestEpochKeepsEveryInjected(t *testing.T) {
	b := newTxBench(t, 256)
	for range 3 * hca.Batch {
		b.Inject(destB, msg(ipoib.EtherTypeARP, make([]byte, 56)))
	}
	b.snap.Publish(newPeers(2))
	for range 3 {
		if got := b.Epoch(); got != 1 {
			t.Errorf("with %d messages queued: %d", b.queued(), got)
		}
		b.pump(t)
		b.qp.completeSends(len(b.qp.sends), hca.WCSuccess)
	}
	b.pump(t)
	if got := b.Epoch(); got != 2 {
		t.Errorf("at the end: %d", got)
	}
}

// Sends that are described but do not fit into the send queue also keep their snapshot.
func TestEpochKeepsDescribed(t *testing.T) {
	b := newTxBench(t, 128)
	b.qp.refuse, b.qp.refuseAfter = hca.ErrQueueFull, 0
	b.Inject(destB, msg(ipoib.EtherTypeARP, make([]byte, 56)))
	b.snap.Publish(newPeers(2))
	for range 3 {
		b.pump(t)
		if got := b.Epoch(); got != 1 {
			t.Errorf("with a send described: %d", got)
		}
	}
	b.qp.refuse, b.qp.auto = nil, true
	b.pump(t)
	b.pump(t)
	if got := b.Epoch(); got != 2 {
		t.Errorf("at the end: %d", got)
	}
}

func TestEpochWhileDetached(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100))
	b.pump(t)
	b.Detach()
	b.snap.Publish(newPeers(7))
	if got := b.Epoch(); got != 7 {
		t.Errorf("epoch while detached: %d, want 7", got)
	}
	b.attach(t, 2)
	b.snap.Publish(newPeers(8))
	if got := b.Epoch(); got != 7 {
		t.Errorf("epoch when attached again: %d, want 7", got)
	}
	b.pump(t)
	if got := b.Epoch(); got != 8 {
		t.Errorf("epoch after a Pump: %d, want 8", got)
	}
}

// In any sequence of events, Epoch is never above the snapshot of the oldest
// outstanding frame or message, never falls, and equals the current one once Tx
// is idle.
func TestEpochIsSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newTxBench(t, 128)
		m := epochModel{b: b, epoch: 1}
		b.src.onRead = func() {
			if rapid.Bool().Draw(rt, "during the read") {
				m.inject()
				m.publish()
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(*rapid.T) { m.publish() },
			"inject": func(rt *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(rt, "n") {
					m.inject()
				}
			},
			"frames":   func(rt *rapid.T) { m.frames(rapid.IntRange(1, 70).Draw(rt, "n")) },
			"pump":     func(*rapid.T) { m.pump(t) },
			"complete": func(rt *rapid.T) { m.complete(rapid.IntRange(0, len(b.qp.sends)).Draw(rt, "n")) },
			"queue":    func(rt *rapid.T) { b.qp.depth = rapid.IntRange(1, 128).Draw(rt, "depth") },
			"":         m.check,
		})
		b.src.onRead, b.qp.depth = nil, 128
		for range 100 {
			m.complete(len(b.qp.sends))
			m.pump(t)
		}
		if got := b.Epoch(); got != m.epoch {
			rt.Fatalf("idle at epoch %d, want the current one, %d", got, m.epoch)
		}
		b.Detach()
	})
}

// epochModel stores in the Q_Key of each send the snapshot that it was made
// from; for an injected message this is the one current at injection.
type epochModel struct {
	b     *txBench
	epoch uint64
	last  uint64
	queue []uint64 // epochs of injected messages not yet posted
}

// taggedPeers returns destinations that carry their epoch.
type taggedPeers struct{ *fakePeers }

func (p taggedPeers) Unicast(ipoib.MAC) (hca.UDDest, *atomic.Uint64, bool) {
	return hca.UDDest{QKey: hca.QKey(p.epoch)}, &p.sent, true
}

func (m *epochModel) publish() {
	m.epoch++
	m.b.snap.Publish(taggedPeers{newPeers(m.epoch)})
}

func (m *epochModel) inject() {
	to := hca.UDDest{QKey: hca.QKey(m.epoch), QPN: 1}
	if m.b.Inject(to, msg(ipoib.EtherTypeARP, make([]byte, 56))) {
		m.queue = append(m.queue, m.epoch)
	}
}

func (m *epochModel) frames(n int) {
	for range n {
		m.b.src.add(toB(60))
	}
}

func (m *epochModel) pump(t *testing.T) {
	before := len(m.b.qp.sends)
	m.b.pump(t)
	for _, s := range m.b.qp.sends[before:] {
		if s.to.QPN == 1 {
			m.queue = m.queue[1:]
		}
	}
}

func (m *epochModel) complete(n int) { m.b.qp.completeSends(n, hca.WCSuccess) }

func (m *epochModel) check(rt *rapid.T) {
	got := m.b.Epoch()
	if got < m.last {
		rt.Fatalf("epoch fell from %d to %d", m.last, got)
	}
	m.last = got
	for _, s := range m.b.qp.sends {
		if e := uint64(s.to.QKey); s.to.QKey != destB.QKey && got > e {
			rt.Fatalf("epoch %d, a send of snapshot %d is posted", got, e)
		}
	}
	for _, e := range m.queue {
		if got > e {
			rt.Fatalf("epoch %d, a message of snapshot %d waits", got, e)
		}
	}
	for i := range m.b.wrs {
		if e := uint64(m.b.wrs[i].UD.QKey); got > e {
			rt.Fatalf("epoch %d, a send of snapshot %d is described", got, e)
		}
	}
}
