package iface

import (
	"cmp"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

// States of an interface.
const (
	StateDown    = "down"
	StateWaiting = "waiting"
	StateUp      = "up"
	StateHealing = "recovering" // the queue pair does not work, and a rung of recovery runs or waits
	StateFailed  = "failed"     // Run has ended by itself
	StateStopped = "stopped"    // Run was ended
)

// status describes the interface; Run's goroutine calls it.
func (f *Iface) status() control.Interface {
	s := control.NewInterface(f.cfg.Name, f.cfg.Device)
	s.Port, s.State = f.cfg.Port, f.stateName()
	s.MAC, s.HostMAC = ipoib.MAC(f.host.now.MAC).String(), f.hostMAC().String()
	s.MTU, s.Carrier, s.Adopted = f.host.now.MTU, f.host.now.Carrier, f.host.adopted
	s.QP, s.Peers = f.qpStatus(), f.peerStatus()
	s.Recovery = f.recoveryStatus()
	s.Counters, s.Kernel = f.counters(), f.kernelCounters()
	if err := cmp.Or(f.fab.err, f.host.foreignError(), f.host.custody.err); err != nil {
		s.Reason = err.Error()
	}
	if f.fab.lastErr != nil {
		s.LastError = f.fab.lastErr.Error()
	}
	if a := f.fab.att; a != nil {
		for _, g := range a.plan.Groups {
			s.Groups = append(s.Groups, control.Group{MGID: g.MGID, Attach: g.Attach})
		}
	}
	return s
}

// lastStatus describes the interface after Run has ended.
func (f *Iface) lastStatus() control.Interface {
	s := control.NewInterface(f.cfg.Name, f.cfg.Device)
	s.State, s.Adopted = StateStopped, f.host.adopted
	if f.end != nil {
		s.State, s.Reason = StateFailed, f.end.Error()
	}
	return s
}

func (f *Iface) stateName() string {
	switch {
	case !f.host.now.Up:
		return StateDown
	case f.fab.att == nil, f.host.custody.foreign:
		return StateWaiting
	case f.rec.ladder.State() != qprecovery.Healthy:
		return StateHealing
	}
	return StateUp
}

func (f *Iface) recoveryStatus() *control.Recovery {
	l := f.rec.ladder
	return control.NewRecovery(l.State(), l.State().Rung(), l.Reason(), l.Counts(), l.History(), time.Now())
}

// hostMAC is the one MAC behind the interface.
func (f *Iface) hostMAC() ipoib.MAC {
	if p := f.path.snapshot.Load(); p != nil {
		return p.HostMAC()
	}
	return f.host.now.MAC
}

// qpStatus describes the queue pair as it was found last.
func (f *Iface) qpStatus() *control.QP {
	a := f.fab.att
	if a == nil {
		return nil
	}
	s := &control.QP{
		QPN: a.self.QPN, Generation: a.gen, Address: a.address().String(),
		GID: a.plan.GID, GIDIndex: a.plan.GIDIndex, PKey: a.plan.PKey, MaxPayload: a.plan.MaxPayload,
	}
	s.State, s.QKey = a.attr.State, a.attr.QKey
	s.SendCQ, s.RecvCQ = cqState(a.queues[0].SendCQ), cqState(a.queues[0].RecvCQ)
	return s
}

// cqState asks a CQ for its health without taking a completion.
func cqState(cq hca.CQ) string {
	if _, err := cq.Poll(nil); err != nil {
		return "error"
	}
	return "ok"
}

func (f *Iface) peerStatus() []control.Peer {
	out := []control.Peer{}
	for _, p := range f.nbrs.table.Peers() {
		out = append(out, peerEntry(p))
	}
	return out
}

func peerEntry(p neigh.PeerInfo) control.Peer {
	ips := make([]string, 0, len(p.IPs))
	for _, ip := range p.IPs {
		ips = append(ips, ip.String())
	}
	return control.Peer{MAC: p.MAC.String(), GID: p.GID, QPN: p.QPN, IPs: ips, Used: p.Used, Handle: p.Handle}
}

// counters are those of the data path and of the peer table.
func (f *Iface) counters() []hca.Counter {
	out := f.path.lanes.counters()
	for _, c := range f.nbrs.table.Stats().Counters() {
		out = append(out, hca.Counter{Name: "neigh_" + c.Name, Value: c.Value})
	}
	return append(out, hca.Counter{Name: "freeze_probes", Value: f.path.lanes.probes()})
}

// kernelCounters are those of the TAP, the kernel's side and ours.
func (f *Iface) kernelCounters() []hca.Counter {
	c, err := f.host.tap.Counters()
	if err != nil {
		return []hca.Counter{}
	}
	k := c.Kernel
	out := []hca.Counter{
		{Name: "kernel_tx_packets", Value: k.TxPackets},
		{Name: "kernel_tx_dropped", Value: k.TxDropped},
		{Name: "kernel_tx_errors", Value: k.TxErrors},
		{Name: "kernel_rx_packets", Value: k.RxPackets},
		{Name: "kernel_rx_dropped", Value: k.RxDropped},
		{Name: "kernel_rx_errors", Value: k.RxErrors},
	}
	for name, v := range c.All() {
		out = append(out, hca.Counter{Name: name, Value: v})
	}
	return out
}
