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

// State is what an interface needs to continue from another one: from that of another process, in the part "interface"
// of a capsule, beside those of the TAP, or from one with another configuration.
type State struct {
	Adopted  bool             `json:"adopted"`
	MTU      MTUState         `json:"mtu"`
	Before   Before           `json:"before"`
	QPN      hca.QPN          `json:"qpn"` // 0: it has no queue pair
	Carrier  bool             `json:"carrier"`
	Offloads Offloads         `json:"offloads"` // of the TAP
	Peers    []neigh.PeerInfo `json:"peers"`
	// Stations are ib0's own and those behind it.
	Stations []neigh.StationInfo `json:"stations"`
	Ladder   qprecovery.Handed   `json:"ladder"`
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

// Parked is an interface whose Run waits, because another process may continue it. Meanwhile the host's
// frames stay in the TAP. One goroutine, which owns the interface in Run's place, calls Export, and then either Resume
// or Leave.
type Parked struct {
	f     *Iface
	over  chan struct{} // closed: Run continues
	stale bool          // the host's frames were being dropped
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
	p := &Parked{f: f, over: make(chan struct{})}
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
	if err == nil && p.f.fabric.att != nil {
		err = p.f.lanes.flush(p.f.log)
	}
	if err != nil {
		p.f.rec.hung(err)
		p.f.rec.step(qprecovery.Tick{})
		reply <- err
		return
	}
	reply <- nil
	<-p.over
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

// Export completes what has arrived, and puts what another process needs to continue the interface into a
// capsule. The device no longer receives. No frame is on its way through this process afterwards, except
// those that it has counted as dropped in the state, which Export also returns.
func (p *Parked) Export(w *capsule.Writer) (s State, err error) {
	f := p.f
	if f.fabric.att != nil {
		f.rec.hung(f.lanes.halt())
		f.lanes.deliver(f.log)
		f.nbrs.drain(f.slow)
		f.rec.hung(f.lanes.flush(f.log))
		if err := f.lanes.hung(); err != nil {
			return State{}, err
		}
	}
	f.fast.read = time.Time{}
	for _, ev := range f.fast.traffic(time.Now()) {
		f.nbrs.step(ev)
	}
	f.show(time.Now())
	s = f.state(f.host.tap.Counters())
	s.Before.Recovery = s.Before.Recovery.Past() // the other process continues the current one
	w.Put("interface", s)
	f.host.tap.Export(w)
	return s, nil
}

// state returns the state of an interface that moves nothing now. The frames that it still keeps end with it, so they
// count as dropped. tap are its counts of the TAP that do not go on.
func (f *Iface) state(tap link.Counters) State {
	now := f.statusWithoutKernel(tap)
	_, filtered := f.programs.counters()
	s := State{
		Adopted: f.host.adopted, MTU: f.host.mtu, Carrier: f.host.monitor.lit(), Offloads: f.fabric.onTAP,
		Peers: handedPeers(f.nbrs.table.Peers()), Stations: f.nbrs.table.Stations(),
		Before: Before{
			Counters: endingWith(now.Counters), TAP: report.TotalsOf(now.Kernel), Filtered: f.before.Filtered + filtered,
			Resolved: now.Resolved, Recovery: now.Recovery,
		},
	}
	if f.fabric.att != nil {
		s.QPN = f.fabric.att.self.QPN
	}
	s.Ladder, _ = f.rec.ladder.HandOver(time.Now())
	return s
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

// Resume ends the parking: the interface continues where it stopped.
func (p *Parked) Resume() {
	p.f.rec.flow()
	if p.stale {
		p.f.lanes.discard(true)
	}
	p.f.rec.step(qprecovery.Tick{}) // carries out what Export has found
	close(p.over)
}

// Leave makes Run return without an effect on ib0, because another process continues it. Close then
// only closes the queues.
func (p *Parked) Leave() {
	p.f.rec.left = true
	p.f.host.tap.GiveUp()
	close(p.over)
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
	f, err := construct(cfg, tap, s, env)
	if err == nil && s.QPN == 0 {
		f.rec.beginStale(time.Now()) // there may be frames that the other process has not dropped yet
	}
	return f, err
}
