package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/kernel/capsule"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
)

const (
	// flushLimit bounds the wait for the completions of what was posted: the software HCA sends at
	// once, or drops what finds the socket full for 5 ms.
	flushLimit = 20 * time.Millisecond
	// handlesLimit bounds the wait for the address handles of inherited peers. Without them, only
	// the first segment of a large frame is kept until its handle is there.
	handlesLimit = 20 * time.Millisecond
)

// State is the part "interface" of a capsule, beside those of the TAP: what another process needs to continue an
// interface.
type State struct {
	Carried
	QPN      hca.QPN           `json:"qpn"` // 0: it has no queue pair
	Carrier  bool              `json:"carrier"`
	Offloads Offloads          `json:"offloads"` // of the TAP
	Peers    []neigh.PeerInfo  `json:"peers"`
	Ladder   qprecovery.Handed `json:"ladder"`
}

// Carried is what an interface keeps when it continues in another process, or with another configuration.
type Carried struct {
	Adopted bool     `json:"adopted"`
	MTU     MTUState `json:"mtu"`
	Before  Before   `json:"before"`
}

// Before is what was counted, since ib0 exists or since the last start that was not a hand-over, by other
// processes, and by interfaces of this one that were rebuilt.
type Before struct {
	Counters report.Totals    `json:"counters"`
	TAP      report.Totals    `json:"tap"`      // those of report.Interface.Kernel that are not the kernel's
	Filtered uint64           `json:"filtered"` // frames that their filters have dropped, which the kernel counts too
	Resolved report.Histogram `json:"resolved"`
	Recovery *report.Recovery `json:"recovery"`
}

// carry makes a new interface continue what another one has carried so far.
func (f *Iface) carry(c Carried) {
	f.host.adopted, f.host.mtu, f.before = c.Adopted, c.MTU, c.Before
	f.host.rebuilt = c.MTU.Set != 0 // else ib0 was never examined
}

// awaitHandles waits until the data path can send to the inherited peers. It returns why a handle could not be destroyed.
func (n *neighbours) awaitHandles() (failed error) {
	for end := time.After(handlesLimit); n.table.Asked() > 0 || !n.table.Shown(); {
		var due <-chan time.Time
		if at, ok := n.table.NextDeadline(); ok {
			due = time.After(time.Until(at))
		}
		select {
		case r := <-n.att.ahResults():
			failed = cmp.Or(failed, n.created(r))
		case <-due:
			n.step(neigh.Tick{})
		case <-end:
			return failed
		}
	}
	return failed
}

// Parked is an interface whose Run waits, because another process may continue it. Meanwhile the host's
// frames stay in the TAP. One goroutine calls Export, and then either Resume or Leave.
type Parked struct {
	f     *Iface
	calls chan func() // Run calls them; closed: it continues
	stale bool        // the host's frames were being dropped
}

// CanPark returns nil if Park would stop the interface now. It stops nothing. Errors: ErrUnsettled with the
// reason, the error of ctx, why the interface has ended.
func (f *Iface) CanPark(ctx context.Context) (err error) {
	if ended := f.do(ctx, func() { err = f.unsettled() }); ended != nil {
		return ended
	}
	return err
}

// Park stops Run unless a recovery or other work is under way, and completes what was posted. From
// then on the interface sends nothing, but still receives. Errors: those of CanPark.
func (f *Iface) Park(ctx context.Context) (*Parked, error) {
	p := &Parked{f: f, calls: make(chan func())}
	reply := make(chan error, 1)
	select {
	case f.queries <- func() { p.wait(reply) }:
		if err := <-reply; err != nil {
			return nil, err
		}
		return p, nil
	case <-f.done:
		return nil, cmp.Or(f.end, errEnded)
	case <-ctx.Done():
		return nil, fmt.Errorf("the interface does not answer: %w", ctx.Err())
	}
}

// wait runs on Run's goroutine.
func (p *Parked) wait(reply chan<- error) {
	if err := p.f.unsettled(); err != nil {
		reply <- err
		return
	}
	p.stale = p.f.lanes.all[0].stale.running
	p.f.lanes.discard(false)
	err := p.f.lanes.hold()
	if err == nil {
		err = p.f.flush()
	}
	if err != nil {
		p.f.rec.hung(err)
		p.f.rec.step(qprecovery.Tick{})
		reply <- err
		return
	}
	reply <- nil
	for call := range p.calls {
		call()
	}
}

// do calls a function on Run's goroutine.
func (p *Parked) do(call func()) {
	done := make(chan struct{})
	p.calls <- func() { defer close(done); call() }
	<-done
}

// ErrUnsettled means that an interface cannot be handed over now, but perhaps in a moment.
var ErrUnsettled = errors.New("cannot be handed over now")

// unsettled returns why the interface cannot be handed over now, or nil. One that waits for its device has
// nothing in flight (R26).
func (f *Iface) unsettled() error {
	r := &f.rec
	_, ok := r.ladder.HandOver(time.Now())
	switch {
	case !f.host.now.Present:
		return fmt.Errorf("%w: the interface is still starting", ErrUnsettled)
	case f.fabric.worker.busy > 0 || f.host.worker.busy > 0 || f.fabric.coming != nil || len(r.later) > 0,
		f.fabric.badClient.held != nil:
		return fmt.Errorf("%w: the interface is changing its state", ErrUnsettled)
	case ok && (f.fabric.att != nil) == (r.ladder.State() == qprecovery.Healthy):
		return nil
	}
	return fmt.Errorf("%w: the interface is recovering: %s", ErrUnsettled, r.ladder.State())
}

// flush completes what was posted to the queue pair. The transmit pumps are halted. It returns the
// error of a device that hangs.
func (f *Iface) flush() error {
	if f.fabric.att == nil {
		return nil
	}
	for _, l := range f.lanes.all {
		err := l.call(l.sender, func() error { return l.tx.Flush(time.Now().Add(flushLimit)) })
		if err != nil {
			f.log.Warn("cannot complete the posted sends before the hand-over; they count as dropped", "err", err)
		}
		if l.lost != nil {
			return l.lost
		}
	}
	return nil
}

// Export completes what has arrived, and puts what another process needs to continue the interface into a
// capsule. The device no longer receives. No frame is on its way through this process afterwards, except
// those that it has counted as dropped in the state, which Export also returns.
func (p *Parked) Export(w *capsule.Writer) (s State, err error) {
	p.do(func() {
		if s, err = p.f.parkedState(); err == nil {
			w.Put("interface", s)
			p.f.host.tap.Export(w)
		}
	})
	return s, err
}

func (f *Iface) parkedState() (s State, err error) {
	if f.fabric.att != nil {
		f.rec.hung(f.lanes.halt())
		for _, l := range f.lanes.all {
			if err := l.call(l.fetcher, l.rx.Flush); err != nil {
				f.log.Warn("cannot deliver all received packets before the hand-over", "err", err)
			}
		}
		f.drainSlow()
		f.rec.hung(f.flush())
		if err := f.lanes.hung(); err != nil {
			return s, err
		}
		s.QPN = f.fabric.att.self.QPN
	}
	f.show(time.Now())
	s.Carried = Carried{f.host.adopted, f.host.mtu, f.counted()}
	s.Before.Recovery = s.Before.Recovery.Past() // the other process continues the current one
	s.Carrier, s.Offloads, s.Peers = f.host.monitor.lit(), f.fabric.onTAP, handedPeers(f.nbrs.table.Peers())
	s.Ladder, _ = f.rec.ladder.HandOver(time.Now())
	return s, nil
}

// maxHeardHanded bounds the peers of an interface that are handed over without having been used. Anyone
// can add some, and each delays the hand-over. The others are heard again.
const maxHeardHanded = 1024

// handedPeers returns the peers that are handed over.
func handedPeers(all []neigh.PeerInfo) []neigh.PeerInfo {
	heard := 0
	return slices.DeleteFunc(all, func(p neigh.PeerInfo) bool {
		if !p.Used {
			heard++
		}
		return !p.Used && heard > maxHeardHanded
	})
}

// drainSlow handles what waits for the slow path.
func (f *Iface) drainSlow() {
	for {
		select {
		case it := <-f.slow.host.ready:
			f.nbrs.fromHost(f.slow.host, it)
		case it := <-f.slow.first.ready:
			f.nbrs.fromFabric(f.slow.first, it)
		case it := <-f.slow.fabric.ready:
			f.nbrs.fromFabric(f.slow.fabric, it)
		default:
			return
		}
	}
}

// counted returns all counts so far. Frames that this process still keeps end with it, so they count
// as dropped.
func (f *Iface) counted() Before {
	s := f.statusWithoutKernel()
	_, dropped := f.programs.counters()
	return Before{
		Counters: endingWith(s.Counters), TAP: report.TotalsOf(s.Kernel), Filtered: f.before.Filtered + dropped,
		Resolved: s.Resolved, Recovery: s.Recovery,
	}
}

// endingWith returns the totals of what ends with these counts: the frames that it still keeps count
// as dropped.
func endingWith(c report.Counters) report.Totals {
	t := report.TotalsOf(c)
	for _, left := range []struct{ gauge, becomes string }{
		{docs.InterfaceTxOutstanding, docs.InterfaceTxDropReset},
		{docs.InterfaceTxQueued, docs.InterfaceTxDropReset},
		{docs.InterfaceNeighKept, docs.InterfaceNeighDropDetached},
		{docs.InterfaceTxOutstanding, docs.InterfaceTxTakenBack},
		{docs.InterfaceRxOutstanding, docs.InterfaceRxTakenBack},
	} {
		n, ok := t[left.becomes]
		if !ok { // none of these counts
			continue
		}
		n.Value += c[left.gauge].Value
		t[left.becomes] = n
	}
	return t
}

// countedOnTAP is counted for an interface that continues on the same TAP, whose own counts go on. The
// counts of its filter end with the filter.
func (f *Iface) countedOnTAP() Before {
	b, tap := f.counted(), report.Counters{}
	filter, _ := f.programs.counters()
	tap.Add("tap_", filter)
	tap.AddTotals(f.before.TAP)
	b.TAP = report.TotalsOf(tap)
	return b
}

// Resume ends the parking: the interface continues where it stopped.
func (p *Parked) Resume() {
	p.do(func() {
		p.f.rec.flow()
		if p.stale {
			p.f.lanes.discard(true)
		}
		p.f.rec.step(qprecovery.Tick{}) // carries out what Export has found
	})
	close(p.calls)
}

// Leave makes Run return without an effect on ib0, because another process continues it. Close then
// only closes the queues.
func (p *Parked) Leave() {
	p.do(func() {
		p.f.rec.left = true
		p.f.host.tap.GiveUp()
	})
	close(p.calls)
}

// Import continues the interface of another process, with the TAP in the same room of the capsule. It leaves
// ib0 as it is until Run: before, Close only closes the queues.
func Import(cfg config.Interface, s State, r *capsule.Reader, env Env) (*Iface, error) {
	tap, err := link.Import(r)
	if err != nil {
		return nil, err
	}
	if n := len(tap.Queues()); n != env.Lanes || tap.Name() != cfg.NetdevName() {
		err := fmt.Errorf("%d queues of %s for %d lanes of %s", n, tap.Name(), env.Lanes, cfg.NetdevName())
		return nil, errors.Join(err, tap.Close())
	}
	if s.Offloads.Got != tap.Offloads() {
		s.Offloads = Offloads{} // they are set again
	}
	f, err := New(cfg, tap, env)
	if err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	f.continues(s)
	if cfg.EBPF {
		f.attachPrograms(tap, env)
	}
	return f, nil
}

// continues takes over the state of another process, and shows it at once: Run may begin much later.
func (f *Iface) continues(s State) {
	f.carry(s.Carried)
	f.inherited, f.fabric.qpn = true, s.QPN
	f.host.monitor.wantCarrier, f.fabric.onTAP = s.Carrier, s.Offloads
	f.host.assignment.raise, f.host.assignment.rising = false, false // the host may have set it down since
	f.nbrs.step(neigh.Restored{Peers: s.Peers})
	f.rec.ladder = qprecovery.InheritLadder(time.Now(), s.Ladder)
	if s.QPN == 0 {
		f.rec.beginStale(time.Now()) // there may be frames that the other process has not dropped yet
	}
	f.show(time.Now())
}
