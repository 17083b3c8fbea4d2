package iface

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

// States of an interface.
const (
	StateDown    = "down"
	StateWaiting = "waiting" // without a queue pair, or without a carrier because of another process
	StateUp      = "up"
	StateHealing = "recovering" // the queue pair does not work, and a rung of recovery runs or waits
	StateFailed  = "failed"     // Run has ended by itself
	StateStopped = "stopped"    // Run was ended
)

// Reasons of the states down, waiting and failed. A recovery has a reason of qprecovery, and
// the other states have none.
const (
	ReasonNone      = "none"
	ReasonStarting  = "starting"        // ib0 was not examined yet
	ReasonAdminDown = "admin_down"      // the operator set ib0 down
	ReasonDevice    = "device"          // the device is not open
	ReasonPort      = "port"            // the port is not usable as configured
	ReasonQueuePair = "queue_pair"      // the queue pair cannot be opened; it is tried again
	ReasonForeign   = "foreign_process" // another process has attached to ib0
	ReasonLost      = "lost"            // ib0 was deleted, moved out of reach, or cannot be watched
)

// publishEvery is the minimum interval between two snapshots of an interface whose state
// does not change, so changes of peers may be published that late.
const publishEvery = 100 * time.Millisecond

// shown is the snapshot that others read, with the bookkeeping of Run's goroutine.
type shown struct {
	snapshot atomic.Pointer[report.Interface] // read-only; without the counters that others read themselves
	of       moment
	at       time.Time // of the next one; zero: nothing has happened since the last one
	ended    bool      // Run has ended, with f.end
}

// moment is the part of the state that is published as soon as it changes.
type moment struct {
	state, reason string
	carrier       bool
	ladder        qprecovery.State
	gen           uint32
}

// Status returns the state of the interface. Any goroutine may call it; it does not wait for
// Run, and reads only atomic counters, and the kernel's by netlink. The rest is up to
// publishEvery old while the interface works, and a second while nothing happens. If it is
// older (see its Time), Run's goroutine hangs.
func (f *Iface) Status() report.Interface {
	s := *f.shown.snapshot.Load()
	neighbours := s.Counters
	s.Counters, s.Kernel = report.Counters{}, report.Counters{}
	for _, l := range f.path.lanes {
		s.Counters.Add("", l.tx.Counters())
		s.Counters.Add("", l.rx.Counters())
	}
	for name, n := range neighbours {
		s.Counters[name] = n
	}
	c, err := f.host.tap.Counters()
	if err != nil {
		return s // ib0 is gone
	}
	k := c.Kernel
	s.Kernel = report.Counters{
		"kernel_tx_packets": k.TxPackets, "kernel_tx_bytes": k.TxBytes, "kernel_tx_dropped": k.TxDropped, "kernel_tx_errors": k.TxErrors,
		"kernel_rx_packets": k.RxPackets, "kernel_rx_bytes": k.RxBytes, "kernel_rx_dropped": k.RxDropped, "kernel_rx_errors": k.RxErrors,
	}
	for name, n := range c.All() {
		s.Kernel[name] = n
	}
	return s
}

// publish makes a snapshot at once if the state has changed, else publishEvery after the last
// one. Run's goroutine calls it after each event.
func (f *Iface) publish(now time.Time) {
	next := moment{carrier: f.host.now.Carrier, ladder: f.rec.ladder.State()}
	next.state, next.reason = f.state()
	if a := f.fab.att; a != nil {
		next.gen = a.gen
	}
	s := f.shown.snapshot.Load()
	if due := s.Time.Add(publishEvery); next == f.shown.of && now.Before(due) {
		f.shown.at = due
		return
	}
	f.shown.of = next
	f.show(now)
}

// show makes a snapshot.
func (f *Iface) show(now time.Time) {
	l := f.rec.ladder
	s := &report.Interface{
		Name: f.cfg.Name, Device: f.cfg.Device, Port: f.cfg.Port, Time: now, Since: now,
		MTU: f.host.now.MTU, Carrier: f.host.now.Carrier, Adopted: f.host.adopted,
		Groups: []report.Group{}, Peers: []report.Peer{}, Counters: report.Counters{"freeze_probes": f.path.lanes.probes()},
		Recovery: report.NewRecovery(l.State(), l.State().Rung(), l.Reason(), l.Counts(), l.History(), now),
	}
	s.State, s.Reason = f.state()
	if last := f.shown.snapshot.Load(); last != nil && last.State == s.State {
		s.Since = last.Since
	}
	if f.host.now.Present {
		s.MAC, s.HostMAC = ipoib.MAC(f.host.now.MAC).String(), ipoib.MAC(f.host.now.MAC).String()
	}
	if p := f.path.snapshot.Load(); p != nil && s.MAC != "" {
		s.HostMAC = p.HostMAC().String()
	}
	if err := cmp.Or(f.end, f.fab.err, f.host.foreignError(), f.host.custody.err); err != nil && s.State != StateStopped {
		s.Detail = err.Error()
	}
	if f.fab.lastErr != nil {
		s.LastError = f.fab.lastErr.Error()
	}
	if a := f.fab.att; a != nil {
		s.QP = &report.QP{
			QPN: a.self.QPN, Generation: a.gen, Address: a.address().String(), GID: a.plan.GID, GIDIndex: a.plan.GIDIndex,
			PKey: a.plan.PKey, QKey: a.plan.Broadcast().QKey, MaxPayload: a.plan.MaxPayload,
		}
		if l.State() == qprecovery.Healthy {
			s.QP.State = hca.QPRTS.String()
		}
		for _, g := range a.plan.Groups {
			s.Groups = append(s.Groups, report.Group{MGID: g.MGID, Attach: g.Attach})
		}
	}
	for _, p := range f.nbrs.table.Peers() {
		if len(p.IPs) == 0 && p.Handle == "none" {
			continue // it has another address now, or was never used
		}
		ips := make([]string, 0, len(p.IPs))
		for _, ip := range p.IPs {
			ips = append(ips, ip.String())
		}
		s.Peers = append(s.Peers, report.Peer{MAC: p.MAC.String(), GID: p.GID, QPN: p.QPN, IPs: ips, Used: p.Used, Handle: p.Handle})
	}
	s.Counters.Add("neigh_", f.nbrs.table.Stats().Counters())
	f.shown.snapshot.Store(s)
	f.shown.at = time.Time{}
}

// state returns the state and its reason.
func (f *Iface) state() (state, reason string) {
	ladder := f.rec.ladder.State()
	switch {
	case f.shown.ended && f.end != nil:
		return StateFailed, ReasonLost
	case f.shown.ended:
		return StateStopped, ReasonNone
	case !f.host.now.Present:
		return StateWaiting, ReasonStarting
	case !f.host.now.Up:
		return StateDown, ReasonAdminDown
	case f.host.custody.foreign:
		return StateWaiting, ReasonForeign
	case f.fab.att != nil && ladder == qprecovery.Healthy:
		return StateUp, ReasonNone
	case f.fab.att != nil:
		return StateHealing, f.rec.ladder.Reason().String()
	case f.fab.dev.View().Session == nil:
		return StateWaiting, ReasonDevice
	case !slices.Contains([]qprecovery.State{qprecovery.Idle, qprecovery.Detached, qprecovery.GivenUp}, ladder):
		return StateWaiting, f.rec.ladder.Reason().String()
	case !f.fab.retry.at.IsZero():
		return StateWaiting, ReasonQueuePair
	}
	return StateWaiting, ReasonPort
}
