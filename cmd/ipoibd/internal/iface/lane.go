package iface

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
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
// A lane lives as long as the interface, unless the device hangs in a post or a poll: its counters
// continue across queue pairs. Run owns the pumps and the detector. While the pumps are halted, the
// worker attaches and detaches the rings.
type lane struct {
	tap             link.Queue
	tx              *ud.Tx
	rx              *ud.Rx
	queue           endpoint.Queue   // attached to the rings
	sender, fetcher *endpoint.Caller // by which out and in use queue
	out, in         pump             // host to fabric, and back
	stale           pump             // drops the host's frames; never runs beside out
	detector        *freeze.Detector
	probes          atomic.Uint64 // sent by the detector
	polled          atomic.Uint64 // freeze.Detector.FoundByPoll
	// resting: the detector may rest, so a pump that posts or receives must wake Run, and clear this.
	resting atomic.Bool
	// lost: a goroutine that hangs in the device owns tx or rx. Another lane replaces this one.
	lost   error
	before report.Totals // counted by the lanes that this one has replaced
}

// newLane returns the lane of a queue of the TAP.
func (ls *lanes) newLane(tap link.Queue) (*lane, error) {
	to := &ls.signals
	l := &lane{tap: tap, detector: freeze.New()}
	stir := func() {
		if l.resting.Load() && l.resting.CompareAndSwap(true, false) {
			signal(to.stirred)
		}
	}
	tx, err := ud.NewTx(ud.TxConfig{
		Slots: ls.sendWRs, MaxMTU: ipoib.MaxMTU, MTU: initialMTU, Scope: ipoib.ScopeLinkLocal, PKey: ls.pkey,
		Source: tap, SlowPath: ls.slow, Peers: ls.peers, OnFailure: to.onFailure(hca.WCSend), OnPost: stir,
	})
	if err != nil {
		return nil, err
	}
	rx, err := ud.NewRx(ud.RxConfig{
		Slots: ls.recvWRs, PortMTU: hca.MaxMTU, MTU: initialMTU,
		Sink: tap, SlowPath: ls.slow, Peers: ls.peers, OnFailure: to.onFailure(hca.WCRecv), OnReceive: stir,
	})
	if err != nil {
		return nil, err
	}
	l.tx, l.rx = tx, rx
	l.out = pump{verb: qprecovery.VerbPostSend, once: tx.Pump, ended: to.ended, wake: func() {
		tx.Wake()
		l.queue.SendCQ.Wake()
	}}
	// The receive pump starts with the buffers that came back flushed before the queue pair
	// turned out to work.
	l.in = pump{
		verb: qprecovery.VerbPostRecv, first: rx.Refill, ended: to.ended,
		once: func() error { return rx.Pump(time.Time{}) },
		wake: func() { l.queue.RecvCQ.Wake() },
	}
	l.stale = pump{once: tx.Discard, wake: tx.Wake}
	return l, nil
}

// deadline returns when the next sample is due. The lane may rest only if all do.
func (l *lane) deadline(now time.Time, mayRest bool) time.Time {
	at, ok := l.detector.NextDeadline(mayRest)
	if !ok {
		return now
	}
	return at
}

// lanes are all lanes of an interface. Only Run replaces one.
type lanes struct {
	all     []*lane // at least one
	sendWRs int
	recvWRs int
	pkey    hca.PKey
	slow    ud.SlowPath
	peers   *ud.Snapshot
	sources []netip.Addr // that the host may use; nil: any
	signals signals      // of all lanes
	records records

	holdFast func(why holdReason, on bool) // fast.setHold
}

func newLanes(
	cfg config.Interface, queues []link.Queue, slow ud.SlowPath, peers *ud.Snapshot, holdFast func(holdReason, bool),
) (*lanes, error) {
	ls := &lanes{
		sendWRs: cfg.SendWRs, recvWRs: cfg.RecvWRs, pkey: cfg.PKey, slow: slow, peers: peers, signals: newSignals(),
		holdFast: holdFast,
	}
	for _, q := range queues {
		l, err := ls.newLane(q)
		if err != nil {
			return nil, err
		}
		ls.all = append(ls.all, l)
	}
	return ls, nil
}

// resting reports whether all lanes rest.
func (ls *lanes) resting() bool {
	return !slices.ContainsFunc(ls.all, func(l *lane) bool { return !l.detector.Resting() })
}

// allowSources makes the lanes drop the host's frames from other addresses than those of the list; nil: none.
func (ls *lanes) allowSources(list []netip.Addr) {
	ls.sources = list
	ls.holdFast(holdSources, list != nil)
	for _, l := range ls.all {
		l.tx.SetSources(list)
	}
}

// identify chooses how the lanes identify senders on the port of a plan.
func (ls *lanes) identify(p port.Plan) {
	for _, l := range ls.all {
		if p.InfiniBand() {
			l.rx.UseLIDs(p.LMC)
		} else {
			l.rx.UseGIDs()
		}
	}
}

// attach gives each lane its queue of an attachment's endpoint, or leaves all without one.
func (ls *lanes) attach(a *attachment, gen uint32) error {
	ls.records.moved(a)
	ls.identify(a.plan)
	for i, l := range ls.all {
		q := a.ep.Queues[i]
		l.queue = q
		l.sender = endpoint.NewCaller(a.session, q.Queue, q.SendCQ)
		l.fetcher = endpoint.NewCaller(a.session, q.Queue, q.RecvCQ)
		err := l.tx.Attach(l.sender.Queue, l.sender.CQ, q.SendMR, a.session.Attr().MaxTSO, gen)
		if err == nil {
			err = l.call(l.fetcher, func() error { return l.rx.Attach(l.fetcher.Queue, l.fetcher.CQ, q.RecvMR, gen) })
		}
		if err != nil {
			ls.detach()
			return err
		}
	}
	return nil
}

// call calls f, which uses the rings, in place of a pump that is halted. If f hangs in the device, the
// lane is lost, and call returns that error from then on.
func (l *lane) call(by *endpoint.Caller, f func() error) error {
	if l.lost != nil {
		return l.lost
	}
	err := by.Do(f)
	if errors.Is(err, hca.ErrStuck) {
		l.lost = err
	}
	return err
}

// hung returns the error of a call that hangs in the device, or nil.
func (ls *lanes) hung() error {
	for _, l := range ls.all {
		if l.lost != nil {
			return l.lost
		}
	}
	return nil
}

// flushLimit bounds the wait for the completions of what was posted: the software HCA sends at
// once, or drops what finds the socket full for 5 ms.
const flushLimit = 20 * time.Millisecond

// flush completes what was posted to the queue pair. The transmit pumps are halted. It returns the
// error of a device that hangs.
func (ls *lanes) flush(log *slog.Logger) error {
	for _, l := range ls.all {
		err := l.call(l.sender, func() error { return l.tx.Flush(time.Now().Add(flushLimit)) })
		if err != nil {
			log.Warn("cannot complete the posted sends before the hand-over; they count as dropped", "err", err)
		}
		if l.lost != nil {
			return l.lost
		}
	}
	return nil
}

// deliver passes on what has arrived. All pumps are halted.
func (ls *lanes) deliver(log *slog.Logger) {
	for _, l := range ls.all {
		if err := l.call(l.fetcher, l.rx.Flush); err != nil {
			log.Warn("cannot deliver all received packets before the hand-over", "err", err)
		}
	}
}

// detach takes back all posted requests and counts them as dropped.
func (ls *lanes) detach() {
	for _, l := range ls.all {
		if l.lost == nil {
			l.tx.Detach()
			l.rx.Detach()
		}
	}
}

// start lets frames flow both ways, on the queue pair of generation gen. Lost lanes stay halted.
// It returns the error of halt.
func (ls *lanes) start(gen uint32) error {
	err := ls.halt()
	for _, l := range ls.all {
		if l.lost == nil {
			l.discard(false)
			l.in.start(gen, l.fetcher)
			l.out.start(gen, l.sender)
			l.detector.Restart()
		}
	}
	return err
}

// hold leaves the host's frames in the TAP; messages from the fabric are still delivered. Lanes whose
// pumps hang in the device are lost, and hold returns the error of one of them.
func (ls *lanes) hold() error { return ls.stop(false) }

// halt stops all pumps. Otherwise it is hold.
func (ls *lanes) halt() error { return ls.stop(true) }

// stop stops the pumps to the fabric, or all, in parallel, because it waits for one that hangs.
func (ls *lanes) stop(all bool) error {
	var others sync.WaitGroup
	errs := make([]error, len(ls.all))
	for i, l := range ls.all[1:] {
		others.Go(func() { errs[i+1] = l.stop(all) })
	}
	errs[0] = ls.all[0].stop(all)
	others.Wait()
	return cmp.Or(errs...)
}

func (l *lane) stop(all bool) error {
	err := l.out.halt()
	if all {
		err = cmp.Or(err, l.in.halt())
	}
	if err != nil { // else the worker may use the lane now
		l.lost = err
	}
	return err
}

// discard drops the host's frames, or stops doing so.
func (ls *lanes) discard(on bool) {
	for _, l := range ls.all {
		l.discard(on)
	}
}

func (l *lane) discard(on bool) {
	_ = l.stale.halt() // it uses only the TAP
	if on {
		l.stale.start(0, nil)
	}
}

// count adds the counters of the lane, and of those that it has replaced, to c.
func (l *lane) count(c report.Counters) {
	c.Add("", []hca.Counter{
		{Name: "freeze_probes", Kind: hca.CountTotal, Value: l.probes.Load()},
		{Name: "freeze_found_by_poll", Kind: hca.CountError, Value: l.polled.Load()},
	})
	c.Add("", l.tx.Counters())
	c.Add("", l.rx.Counters())
	c.AddTotals(l.before)
}

// count adds the counters of all lanes to c. Any goroutine may call it.
func (ls *lanes) count(c report.Counters) {
	ls.records.mu.Lock() // renew replaces lanes
	defer ls.records.mu.Unlock()
	for _, l := range ls.all {
		l.count(c)
	}
}

// renew replaces the lanes that are lost. The frames that they keep count as dropped. The worker must
// be idle.
func (ls *lanes) renew() error {
	for i, l := range ls.all {
		if l.lost == nil {
			continue
		}
		next, err := ls.newLane(l.tap)
		if err != nil {
			return err
		}
		next.tx.SetSources(ls.sources)
		stale := l.stale.running
		l.discard(false) // before its counts are read
		counters := report.Counters{}
		l.count(counters)
		next.before = endingWith(counters)
		ls.records.mu.Lock()
		ls.all[i] = next
		ls.useRecorders()
		ls.records.mu.Unlock()
		next.discard(stale)
	}
	return nil
}

// epoch returns the oldest snapshot that a frame of any lane may have been routed by.
func (ls *lanes) epoch() uint64 {
	oldest := ls.all[0].tx.Epoch()
	for _, l := range ls.all[1:] {
		oldest = min(oldest, l.tx.Epoch())
	}
	return oldest
}
