package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
)

const (
	// flushLimit bounds the wait for the completions of what was posted: the software HCA sends at
	// once, or drops what finds the socket full for 5 ms.
	flushLimit = 20 * time.Millisecond
	// settlePause is the pause before an interface is asked again whether it can be handed over.
	settlePause = 2 * time.Millisecond
	// handlesLimit bounds the wait for the address handles of inherited peers. Without them, only
	// the first segment of a large frame is kept until its handle is there.
	handlesLimit = 20 * time.Millisecond
)

// State is what another process needs to continue an interface. The descriptors belong to TAP.
type State struct {
	TAP     link.Handed
	QPN     hca.QPN // 0: it has no queue pair
	Adopted bool
	MTU     MTUState
	Peers   []neigh.PeerInfo
	Before  Before
}

// Before is what was counted, since ib0 exists or since the last start that was not a hand-over, by other
// processes, and by interfaces of this one that were rebuilt.
type Before struct {
	Counters report.Totals
	TAP      report.Totals // those of report.Interface.Kernel that are not the kernel's
	Filtered uint64        // frames that their filters have dropped, which the kernel counts too
	Resolved report.Histogram
	Recovery *report.Recovery
}

// handable is a TAP that another process can continue.
type handable interface {
	HandOver() (link.Handed, []int, error)
	GiveUp()
	Own()
}

// heir is the part of an interface's state that exists because of a hand-over.
type heir struct {
	left      bool    // another process continues the interface; Run is ending
	inherited bool    // this one continues it, and has not had a queue pair yet
	qpn       hca.QPN // that the queue pair had
}

// own takes possession of the TAP, before Run uses it.
func (h *heir) own(tap TAP) {
	if t, ok := tap.(handable); ok && h.inherited {
		t.Own()
	}
}

// takeQPN returns the inherited number, once: a recovery may need another one.
func (h *heir) takeQPN() (n hca.QPN) {
	n, h.qpn = h.qpn, 0
	return n
}

// awaitHandles waits until the data path can send to the inherited peers, once.
func (h *heir) awaitHandles(n *neighbours) {
	if !h.inherited {
		return
	}
	h.inherited = false
	for end := time.After(handlesLimit); n.table.Asked() > 0 || !n.table.Shown(); {
		var due <-chan time.Time
		if at, ok := n.table.NextDeadline(); ok {
			due = time.After(time.Until(at))
		}
		select {
		case r := <-n.f.rec.att.ahResults():
			n.created(r)
		case <-due:
			n.step(neigh.Tick{})
		case <-end:
			return
		}
	}
}

// Parked is an interface whose Run waits, because another process may continue it. Meanwhile the host's
// frames stay in the TAP. One goroutine calls State, and then either Resume or Leave.
type Parked struct {
	f     *Iface
	calls chan func() // Run calls them; closed: it continues
}

// Park stops Run when no recovery and no other work is under way, and completes what was posted. From
// then on the interface sends nothing, but still receives. Errors: the error of ctx, with the reason
// why it could not be parked; why the interface has ended.
func (f *Iface) Park(ctx context.Context) (*Parked, error) {
	if _, ok := f.host.tap.(handable); !ok {
		return nil, fmt.Errorf("a %T cannot be handed over", f.host.tap)
	}
	p := &Parked{f: f, calls: make(chan func())}
	why := errors.New("the interface does not answer")
	for {
		reply := make(chan error, 1)
		select {
		case f.queries <- func() { p.wait(reply) }:
			if why = <-reply; why == nil {
				return p, nil
			}
		case <-f.done:
			return nil, cmp.Or(f.end, errEnded)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", why, ctx.Err())
		}
		time.Sleep(settlePause)
	}
}

// wait runs on Run's goroutine.
func (p *Parked) wait(reply chan<- error) {
	if err := p.f.rec.unsettled(); err != nil {
		reply <- err
		return
	}
	p.f.lanes.hold()
	p.f.flush()
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

// unsettled returns why the interface cannot be handed over now, or nil.
func (r *recovery) unsettled() error {
	state := r.ladder.State()
	switch {
	case !r.f.host.now.Present:
		return errors.New("the interface is still starting")
	case r.worker.busy > 0 || r.f.host.worker.busy > 0 || r.coming != nil || len(r.later) > 0 || r.badClient.held != nil:
		return errors.New("the interface is changing its state")
	case r.att == nil && state == qprecovery.Idle, r.att != nil && state == qprecovery.Healthy:
		return nil
	}
	return fmt.Errorf("the interface is recovering: %s", state)
}

// flush completes what was posted to the queue pair. The transmit pumps are halted.
func (f *Iface) flush() {
	if f.rec.att == nil {
		return
	}
	for _, l := range f.lanes {
		if err := l.tx.Flush(time.Now().Add(flushLimit)); err != nil {
			f.log.Warn("complete the posted sends before a hand-over", "err", err) // what is left counts as dropped
		}
	}
}

// State completes what has arrived, and returns what another process needs to continue the interface,
// with descriptors, which the caller closes. The device no longer receives. No frame is on its way
// through this process afterwards, except those that it has counted as dropped in the state.
func (p *Parked) State() (s State, fds []int, err error) {
	p.do(func() { s, fds, err = p.f.handOver() })
	return s, fds, err
}

func (f *Iface) handOver() (s State, fds []int, err error) {
	if f.rec.att != nil {
		f.lanes.halt()
		for _, l := range f.lanes {
			if err := l.rx.Flush(); err != nil {
				f.log.Warn("deliver what has arrived before a hand-over", "err", err)
			}
		}
		f.drainSlow()
		f.flush()
		s.QPN = f.rec.att.self.QPN
	}
	s.Adopted, s.MTU = f.host.adopted, f.host.mtu
	s.Peers = handedPeers(f.nbrs.table.Peers())
	f.show(time.Now())
	s.Before = f.counted()
	s.TAP, fds, err = f.host.tap.(handable).HandOver()
	return s, fds, err
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
			f.nbrs.fromHost(it)
		case it := <-f.slow.fabric.ready:
			f.nbrs.fromFabric(it)
		default:
			return
		}
	}
}

// counted returns all counts so far. Frames that this process still keeps end with it, so they count
// as dropped.
func (f *Iface) counted() (b Before) {
	s := f.statusWithoutKernel()
	_, dropped := f.programs.counters()
	b = Before{Counters: report.TotalsOf(s.Counters), TAP: report.TotalsOf(s.Kernel), Filtered: f.before.Filtered + dropped, Resolved: s.Resolved, Recovery: s.Recovery}
	for _, left := range []struct{ gauge, becomes string }{
		{"tx_outstanding", "tx_drop_reset"},
		{"tx_queued", "tx_drop_reset"},
		{"neigh_kept", "neigh_drop_detached"},
		{"tx_outstanding", "tx_taken_back"},
		{"rx_outstanding", "rx_taken_back"},
	} {
		n := b.Counters[left.becomes]
		n.Value += s.Counters[left.gauge].Value
		b.Counters[left.becomes] = n
	}
	return b
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
	p.do(p.f.rec.flow)
	close(p.calls)
}

// Leave makes Run return without an effect on ib0, because another process continues it. Close then
// only closes the queues.
func (p *Parked) Leave() {
	p.do(func() {
		p.f.heir.left = true
		p.f.host.tap.(handable).GiveUp()
	})
	close(p.calls)
}

// Inherit continues the interface of another process, with its descriptors, which it owns from then
// on. It leaves ib0 as it is until Run: before, Close only closes the queues.
func Inherit(cfg config.Interface, s State, fds []int, env Env) (*Iface, error) {
	if s.TAP.Queues != cfg.Lanes || s.TAP.Name != cfg.NetdevName() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("%d queues of %s for %d lanes of %s", s.TAP.Queues, s.TAP.Name, cfg.Lanes, cfg.NetdevName())
	}
	tap, err := link.Inherit(s.TAP, fds)
	if err != nil {
		return nil, err
	}
	f, err := New(cfg, realTAP{tap}, env)
	if err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	f.before, f.heir = s.Before, heir{inherited: true, qpn: s.QPN}
	f.host.adopted, f.host.rebuilt = s.Adopted, s.MTU.Set != 0
	f.host.mtu = s.MTU
	f.host.custody.wantCarrier = s.TAP.Carrier
	f.host.assignment.raise, f.host.assignment.rising = false, false // the host may have set it down since
	f.nbrs.step(neigh.Restored{Peers: s.Peers})
	if cfg.EBPF {
		f.attachPrograms(tap, env)
	}
	return f, nil
}
