package ud

import (
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// txBench is a Tx on fakes.
type txBench struct {
	*Tx
	src   *fakeSource
	slow  *fakeSlow
	snap  *Snapshot
	qp    *fakeQP
	fails []Failure

	maxTSO int // of the device
}

func newTxBench(t testing.TB, slots int) *txBench {
	t.Helper()
	b := &txBench{src: &fakeSource{}, slow: &fakeSlow{}, snap: &Snapshot{}}
	b.snap.Publish(newPeers(1))
	cfg := TxConfig{
		Slots: slots, MaxMTU: testMTU, MTU: testMTU, Scope: ipoib.ScopeLinkLocal, PKey: testPKey,
		Source: b.src, SlowPath: b.slow, Peers: b.snap,
		OnFailure: func(f Failure) { b.fails = append(b.fails, f) },
	}
	tx, err := NewTx(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Tx = tx
	b.qp = &fakeQP{mr: &fakeMR{make([]byte, cfg.Slots*TxStride(cfg.MaxMTU, 0))}, sendCQ: &fakeCQ{}, depth: slots}
	b.attach(t, 1)
	return b
}

func (b *txBench) attach(t testing.TB, gen uint32) {
	t.Helper()
	if err := b.Attach(b.qp, b.qp.sendCQ, b.qp.mr, b.maxTSO, gen); err != nil {
		t.Fatal(err)
	}
}

func (b *txBench) pump(t testing.TB) {
	t.Helper()
	if err := b.Pump(); err != nil {
		t.Fatal(err)
	}
}

// sent returns the messages posted to the QP.
func (b *txBench) sent() (out [][]byte) {
	for _, s := range b.qp.sends {
		out = append(out, b.qp.mr.at(s.sge))
	}
	return out
}

// rxBench is an Rx on fakes.
type rxBench struct {
	*Rx
	sink  *fakeSink
	slow  *fakeSlow
	snap  *Snapshot
	qp    *fakeQP
	fails []Failure
}

func newRxBench(t testing.TB, slots int) *rxBench {
	t.Helper()
	b := &rxBench{sink: &fakeSink{accept: -1}, slow: &fakeSlow{}, snap: &Snapshot{}}
	b.snap.Publish(newPeers(1))
	cfg := RxConfig{
		Slots: slots, PortMTU: 4096, MTU: testMTU, Sink: b.sink, SlowPath: b.slow, Peers: b.snap,
		OnFailure: func(f Failure) { b.fails = append(b.fails, f) },
	}
	rx, err := NewRx(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Rx = rx
	b.qp = &fakeQP{mr: &fakeMR{make([]byte, cfg.Slots*RxStride(cfg.PortMTU, false))}, recvCQ: &fakeCQ{}, depth: slots}
	b.attach(t, 1)
	return b
}

func (b *rxBench) attach(t testing.TB, gen uint32) {
	t.Helper()
	if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, gen); err != nil {
		t.Fatal(err)
	}
}

func (b *rxBench) pump(t testing.TB) {
	t.Helper()
	if err := b.Pump(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// counts returns the counters that are not zero.
func counts(cs []hca.Counter) map[string]uint64 {
	m := map[string]uint64{}
	for _, c := range cs {
		if c.Value != 0 {
			m[c.Name] = c.Value
		}
	}
	return m
}
