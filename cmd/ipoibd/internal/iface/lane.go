package iface

import (
	"sync"
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
	probes   uint64 // sent by the detector
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

// pump is a goroutine that moves frames one way until it is halted or fails. Run owns it.
type pump struct {
	verb  qprecovery.Verb // the verb of an error that does not name one
	first func() error    // runs before the first round; may be nil
	once  func() error    // a round
	wake  func()          // makes a round return soon
	ended chan<- struct{} // gets a value when the pump has failed; may be nil

	running bool // started, and neither halted nor found failed since
	gen     uint32
	stop    atomic.Bool
	rounds  atomic.Uint64         // that have ended
	err     atomic.Pointer[error] // why it failed; nil while it runs
	wg      sync.WaitGroup
}

// start runs the pump on the queue pair of generation gen. The pump must not be running.
func (p *pump) start(gen uint32) {
	p.running, p.gen = true, gen
	p.stop.Store(false)
	p.err.Store(nil)
	p.wg.Go(p.run)
}

func (p *pump) run() {
	var err error
	if p.first != nil {
		err = p.first()
	}
	for err == nil && !p.stop.Load() {
		err = p.once()
		p.rounds.Add(1)
	}
	if err == nil {
		return
	}
	p.err.Store(&err)
	select {
	case p.ended <- struct{}{}:
	default: // Run has not handled the previous one yet
	}
}

// halt stops the pump and clears its error, if any. Idempotent.
func (p *pump) halt() {
	if !p.running {
		return
	}
	p.stop.Store(true)
	p.wake()
	p.wg.Wait()
	p.running = false
	p.err.Store(nil)
}

// failure returns the error of a pump that has failed, once.
func (p *pump) failure() error {
	err := p.err.Swap(nil)
	if err == nil {
		return nil
	}
	p.wg.Wait()
	p.running = false
	return *err
}

// slowItems bounds the items waiting for the slow path in one direction. Each direction has
// its own queue, so that a flood from the fabric does not crowd out the host's frames.
const slowItems = 512

// slowItem is a copy of a frame from the host or of a message from the fabric.
type slowItem struct {
	data []byte
	from ud.Sender // only of a message
}

// slowQueue is bounded and reuses its buffers. The data path calls put; the owner receives
// from ready and calls done.
type slowQueue struct {
	free, ready chan *slowItem
}

func newSlowQueue() slowQueue {
	q := slowQueue{free: make(chan *slowItem, slowItems), ready: make(chan *slowItem, slowItems)}
	for range slowItems {
		q.free <- new(slowItem)
	}
	return q
}

func (q slowQueue) put(data []byte, from ud.Sender) bool {
	select {
	case it := <-q.free:
		it.data, it.from = append(it.data[:0], data...), from
		q.ready <- it // never blocks, because there are as many places as items
		return true
	default:
		return false
	}
}

func (q slowQueue) done(it *slowItem) { q.free <- it }

// slowPath is the pair of queues, as the data path uses it.
type slowPath struct{ host, fabric slowQueue }

// FromHost implements ud.SlowPath.
func (s slowPath) FromHost(frame []byte) bool { return s.host.put(frame, ud.Sender{}) }

// FromFabric implements ud.SlowPath.
func (s slowPath) FromFabric(msg []byte, from ud.Sender) bool { return s.fabric.put(msg, from) }
