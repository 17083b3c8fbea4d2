package iface

import (
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/freeze"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// lane holds what exists once per queue: a queue of the TAP and a queue of the queue pair, the
// rings between them with their CQs, the pumps, and the freeze detector. The queue pair, its
// number and its generation belong to the interface, because an IPoIB address contains one
// QPN. So an error of one lane's CQ rebuilds the queue pair, with the CQs of all lanes (R1).
//
// A lane lives as long as the interface: its counters continue across queue pairs. Run owns
// the pumps and the detector. While the pumps are halted, the worker attaches and detaches
// the rings.
type lane struct {
	tx       *ud.Tx
	rx       *ud.Rx
	queue    device.Queue // attached to the rings
	out, in  pump         // host to fabric, and back
	stale    pump         // drops the host's frames; never runs beside out
	detector *freeze.Detector
	probes   atomic.Uint64 // sent by the detector
}

// newLane returns the lane of a queue of the TAP.
func newLane(f *Iface, tap TAPQueue) (*lane, error) {
	tx, err := ud.NewTx(ud.TxConfig{
		Slots: f.cfg.SendWRs, MaxMTU: ipoib.MaxMTU, MTU: initialMTU, Scope: port.ScopeLocal, PKey: f.cfg.PKey,
		Source: tap, SlowPath: f.slow, Peers: f.snapshot, OnFailure: f.rec.onFailure(hca.WCSend),
	})
	if err != nil {
		return nil, err
	}
	rx, err := ud.NewRx(ud.RxConfig{
		Slots: f.cfg.RecvWRs, PortMTU: hca.MaxMTU, MTU: initialMTU,
		Sink: tap, SlowPath: f.slow, Peers: f.snapshot, OnFailure: f.rec.onFailure(hca.WCRecv),
	})
	if err != nil {
		return nil, err
	}
	l := &lane{tx: tx, rx: rx, detector: freeze.New(freeze.Config{})}
	l.out = pump{verb: qprecovery.VerbPostSend, once: tx.Pump, ended: f.rec.ended, wake: func() {
		tx.Wake()
		l.queue.SendCQ.Wake()
	}}
	// The receive pump starts with the buffers that came back flushed before the queue pair
	// turned out to work.
	l.in = pump{
		verb: qprecovery.VerbPostRecv, first: rx.Refill, ended: f.rec.ended,
		once: func() error { return rx.Pump(time.Time{}) },
		wake: func() { l.queue.RecvCQ.Wake() },
	}
	l.stale = pump{once: tx.Discard, wake: tx.Wake}
	return l, nil
}

// deadline returns when the next sample is due.
func (l *lane) deadline(now time.Time) time.Time {
	at, ok := l.detector.NextDeadline()
	if !ok {
		return now
	}
	return at
}

// lanes are all lanes of an interface; there is at least one.
type lanes []*lane

// attach gives each lane its queue of an attachment's endpoint, or leaves all without one.
func (ls lanes) attach(a *attachment, gen uint32) error {
	a.records.moved(a)
	for i, l := range ls {
		q := a.ep.Queues[i]
		l.queue = q
		err := l.tx.Attach(q.Queue, q.SendCQ, q.SendMR, a.session.Attr().MaxTSO, gen)
		if err == nil {
			err = l.rx.Attach(q.Queue, q.RecvCQ, q.RecvMR, gen)
		}
		if err != nil {
			ls.detach()
			return err
		}
	}
	return nil
}

// detach takes back all posted requests and counts them as dropped.
func (ls lanes) detach() {
	for _, l := range ls {
		l.tx.Detach()
		l.rx.Detach()
	}
}

// start lets frames flow both ways, on the queue pair of generation gen.
func (ls lanes) start(gen uint32) {
	for _, l := range ls {
		l.stale.halt()
		for _, p := range []*pump{&l.in, &l.out} {
			p.halt()
			p.start(gen)
		}
		l.detector.Restart()
	}
}

// hold leaves the host's frames in the TAP; messages from the fabric are still delivered.
func (ls lanes) hold() {
	for _, l := range ls {
		l.out.halt()
	}
}

func (ls lanes) halt() {
	ls.hold()
	for _, l := range ls {
		l.in.halt()
	}
}

// discard drops the host's frames, or stops doing so.
func (ls lanes) discard(on bool) {
	for _, l := range ls {
		if l.stale.halt(); on {
			l.stale.start(0)
		}
	}
}

// epoch returns the oldest snapshot that a frame of any lane may have been routed by.
func (ls lanes) epoch() uint64 {
	oldest := ls[0].tx.Epoch()
	for _, l := range ls[1:] {
		oldest = min(oldest, l.tx.Epoch())
	}
	return oldest
}
