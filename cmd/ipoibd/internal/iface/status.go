package iface

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

const (
	// publishEvery is the minimum interval between two snapshots of an interface whose state
	// does not change, so changes of peers may be published with that delay.
	publishEvery = 100 * time.Millisecond
	// publishRest is the same while all lanes rest, and the maximum interval otherwise.
	publishRest = 5 * time.Second
	// publishPeer is added to the interval for each peer: about a hundred times the cost of
	// copying a peer (neigh.BenchmarkPeers), or 0.2 s with 10,000 peers.
	publishPeer = 20 * time.Microsecond
	// publishStation is the same for a station with its addresses and groups.
	publishStation = 400 * time.Microsecond
)

// shown is the snapshot that others read, with the bookkeeping of Run's goroutine.
type shown struct {
	snapshot atomic.Pointer[snapshot]
	at       time.Time // of the next one
	ended    bool      // Run has returned f.end

	stationsFull   bool // the notice is shown
	groupsUnserved bool // the same
	// txDropped is the kernel's count of dropped frames less the filter's. They are not read at the same
	// moment, and the filter's count is the newer one.
	txDropped highest
}

// highest is the highest of several values. Any goroutine may call with.
type highest struct{ value atomic.Uint64 }

// with returns the highest value, including n.
func (h *highest) with(n uint64) uint64 {
	for {
		was := h.value.Load()
		if n <= was {
			return was
		}
		if h.value.CompareAndSwap(was, n) {
			return n
		}
	}
}

// snapshot is read-only.
type snapshot struct {
	report.Interface // without the peers and the counters that readers collect themselves
	peers            []neigh.PeerInfo
	stations         []neigh.StationInfo
}

// Status returns the state of the interface. Any goroutine may call it. It does not wait for
// Run: it reads only atomic counters, the kernel's counters by netlink, and the counters of the eBPF
// filter. The rest is from the last snapshot, whose age is at most publishEvery plus publishPeer
// for each peer and publishStation for each station, or publishRest while nothing happens. If it is older
// (see its Time), Run's goroutine hangs.
func (f *Iface) Status() report.Interface {
	s := f.statusWithoutKernel(f.host.tap.Counters())
	if k, err := f.host.tap.KernelCounters(); err == nil { // else ib0 is gone, or the kernel does not answer
		_, dropped := f.programs.counters()
		// The kernel also counts what the filter dropped.
		k.TxDropped = f.shown.txDropped.with(k.TxDropped - min(dropped+f.before.Filtered, k.TxDropped))
		s.Kernel.Add("kernel_", kernelCounters(k))
	}
	return s
}

// statusWithoutKernel is Status without the kernel's counters, and without netlink.
func (f *Iface) statusWithoutKernel(tap link.Counters) report.Interface {
	last := f.shown.snapshot.Load()
	s := last.Interface
	s.Peers, s.Stations = reportPeers(last.peers), reportStations(last.stations)
	s.Counters, s.Kernel = maps.Clone(s.Counters), report.Counters{}
	f.lanes.count(s.Counters)
	f.fast.count(s.Counters)
	s.Counters.AddTotals(f.before.Counters)
	s.Resolved, s.Recovery = s.Resolved.After(f.before.Resolved), s.Recovery.After(f.before.Recovery)
	s.NoEBPF, s.NoFastPath = f.programs.lacking(), f.fast.lacking()
	filter, _ := f.programs.counters()
	s.Kernel.Add("tap_", tapCounters(tap))
	s.Kernel.Add("tap_", filter)
	s.Kernel.AddTotals(f.before.TAP)
	s.Drops = s.Counters.Drops() + s.Kernel.Drops()
	return s
}

// Summary describes the interface in a few words: "ib0 up", "ib1 waiting (port), no carrier". Any
// goroutine may call it. It only reads the last snapshot.
func (f *Iface) Summary() string {
	s := f.shown.snapshot.Load()
	text := s.Name + " " + s.State
	if s.Reason != report.ReasonNone {
		text += " (" + s.Reason + ")"
	}
	if !s.Carrier {
		text += ", no carrier"
	}
	return text
}

// Works reports whether the last snapshot shows the interface up. Any goroutine may call it.
func (f *Iface) Works() bool { return f.shown.snapshot.Load().State == report.InterfaceUp }

// reportPeers returns the peers in the order of their MACs. It leaves out those that have
// another address now, or were never used. Several goroutines may read list.
func reportPeers(list []neigh.PeerInfo) []report.Peer {
	list = slices.SortedFunc(slices.Values(list), func(a, b neigh.PeerInfo) int { return bytes.Compare(a.MAC[:], b.MAC[:]) })
	out := make([]report.Peer, 0, len(list))
	for _, p := range list {
		if len(p.IPs) == 0 && p.Handle == "none" {
			continue
		}
		out = append(out, report.Peer{
			MAC: p.MAC.String(), GID: p.GID, QPN: p.QPN, IPs: addresses(p.IPs), Used: p.Used, Handle: p.Handle,
			Sent: p.Sent, Heard: p.Heard, TxBytes: p.SentBytes, RxBytes: p.HeardBytes,
		})
	}
	return out
}

// addresses returns the text of IP addresses.
func addresses(ips []netip.Addr) []string {
	out := make([]string, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

func reportStations(list []neigh.StationInfo) []report.Station {
	out := make([]report.Station, 0, len(list))
	for _, st := range list {
		out = append(out, report.Station{
			MAC: st.MAC.String(), IPs: addresses(st.IPs), Heard: st.Seen, Default: st.Default, Router: st.Router,
			Groups: addresses(slices.SortedFunc(slices.Values(st.Groups), netip.Addr.Compare)),
		})
	}
	return out
}

// tapCounters are the daemon's own counts of frames at the TAP.
func tapCounters(c link.Counters) []hca.Counter {
	return []hca.Counter{
		{Name: "read", Kind: hca.CountTotal, Value: c.Read},
		{Name: "written", Kind: hca.CountTotal, Value: c.Written},
		{Name: "drop_read_too_long", Kind: hca.CountDrop, Value: c.Drops.ReadTooLong},
		{Name: "drop_write_invalid", Kind: hca.CountDrop, Value: c.Drops.WriteInvalid},
		{Name: "drop_write_down", Kind: hca.CountDrop, Value: c.Drops.WriteDown},
		{Name: "drop_write_no_memory", Kind: hca.CountDrop, Value: c.Drops.WriteNoMem},
		{Name: "drop_write_other", Kind: hca.CountDrop, Value: c.Drops.WriteOther},
	}
}

// kernelCounters are the kernel's counts of ib0.
func kernelCounters(k link.KernelCounters) []hca.Counter {
	return []hca.Counter{
		{Name: "tx_packets", Kind: hca.CountTotal, Value: k.TxPackets},
		{Name: "tx_bytes", Kind: hca.CountTotal, Value: k.TxBytes},
		{Name: "tx_dropped", Kind: hca.CountDrop, Value: k.TxDropped},
		{Name: "tx_errors", Kind: hca.CountError, Value: k.TxErrors},
		{Name: "rx_packets", Kind: hca.CountTotal, Value: k.RxPackets},
		{Name: "rx_bytes", Kind: hca.CountTotal, Value: k.RxBytes},
		{Name: "rx_dropped", Kind: hca.CountDrop, Value: k.RxDropped},
		{Name: "rx_errors", Kind: hca.CountError, Value: k.RxErrors},
	}
}

// publish makes a snapshot at once if the state has changed, else publishEvery after the last
// one, or publishRest. Run's goroutine calls it after each event.
func (f *Iface) publish(now time.Time) {
	s := f.shown.snapshot.Load()
	state, reason := f.condition()
	a := f.fabric.att
	same := s.State == state && s.Reason == reason && s.Carrier == f.host.now.Carrier &&
		s.Recovery.State == f.rec.ladder.State().String()
	if same = same && (a == nil) == (s.QP == nil); same && a != nil {
		same = s.QP.Generation == a.gen
	}
	every := publishEvery
	if f.nbrs.idle && !f.nbrs.acted {
		every = publishRest
	}
	every += publishPeer*time.Duration(len(s.peers)) + publishStation*time.Duration(len(s.stations))
	if next := s.Time.Add(every); same && now.Before(next) {
		f.shown.at = next
		return
	}
	f.show(now)
}

// show makes a snapshot.
func (f *Iface) show(now time.Time) {
	l := f.rec.ladder
	f.nbrs.acted = false
	s := &snapshot{peers: f.nbrs.table.Peers(), stations: f.nbrs.table.Stations(), Interface: report.Interface{
		Name: f.cfg.Name, Device: f.cfg.Device, Port: f.cfg.Port, Time: now, Since: now,
		Netns: f.cfg.Netns, Netdev: f.cfg.Netdev, Owner: f.cfg.Owner,
		MTU: f.host.now.MTU, MTULimit: f.host.mtuReport.path, Carrier: f.host.now.Carrier, Adopted: f.host.adopted,
		Lanes: len(f.lanes.all), SendWRs: f.cfg.SendWRs, RecvWRs: f.cfg.RecvWRs,
		Groups: []report.Group{}, Counters: report.Counters{},
		Recovery: report.NewRecovery(l.State(), l.State().Rung(), l.Reason(), l.Counts(), l.History(), now),
	}}
	link := f.host.mtuReport.link()
	link.EventsLost = slices.ContainsFunc(f.lanes.all, func(l *lane) bool { return l.detector.EventsLost() })
	link.StationsFull = f.nbrs.table.Stats().StationsFull
	if link.StationsFull && !f.shown.stationsFull {
		f.log.Warn(diagnose.StationsFull)
	}
	link.GroupsUnserved = f.fabric.member.unserved()
	if a := f.fabric.att; a != nil {
		link.GroupsUnserved += int(a.refused.Load())
	}
	if some := link.GroupsUnserved > 0; some && !f.shown.groupsUnserved {
		f.log.Warn(diagnose.GroupsUnserved, "groups", link.GroupsUnserved)
	}
	f.shown.stationsFull, f.shown.groupsUnserved = link.StationsFull, link.GroupsUnserved > 0
	s.Notices = link.Notices()
	s.Notice = s.Notices.Text()
	s.State, s.Reason = f.condition()
	if last := f.shown.snapshot.Load(); last != nil && last.State == s.State {
		s.Since = last.Since
	}
	if f.host.now.Present {
		s.MAC, s.HostMAC = ipoib.MAC(f.host.now.MAC).String(), ipoib.MAC(f.host.now.MAC).String()
	}
	for _, st := range s.stations {
		if st.Default && s.MAC != "" {
			s.HostMAC = st.MAC.String()
		}
	}
	raising := error(nil)
	if f.host.assignment.raise {
		raising = f.host.assignment.err
	}
	err := cmp.Or(f.end, raising, f.rec.err, f.host.foreignError(), f.host.monitor.err, f.host.assignment.err)
	if err != nil && s.State != report.InterfaceStopped {
		s.Detail = err.Error()
	}
	if err := f.host.assignment.err; err != nil {
		s.Unassigned = err.Error()
	}
	if f.rec.lastErr != nil {
		s.LastError = f.rec.lastErr.Error()
	}
	if a := f.fabric.att; a != nil {
		s.QP = &report.QP{
			QPN: a.self.QPN, Generation: a.gen, Address: a.address().String(),
			GID: a.plan.GID, GIDIndex: a.plan.GIDIndex,
			PKey: a.plan.PKey, QKey: a.plan.Broadcast().QKey, MaxPayload: a.plan.MaxPayload,
		}
		if l.State() == qprecovery.Healthy {
			s.QP.State = hca.QPRTS.String()
		}
		for _, g := range a.plan.Groups {
			s.Groups = append(s.Groups, report.Group{MGID: g.MGID, Attach: g.Attach})
		}
	}
	stats := f.nbrs.table.Stats()
	s.Counters.Add("neigh_", stats.Counters())
	s.Resolved = report.NewHistogram(&stats.Resolved)
	f.shown.snapshot.Store(s)
	f.shown.at = now.Add(publishRest)
}

// condition returns the state and its reason.
func (f *Iface) condition() (state, reason string) {
	ladder := f.rec.ladder.State()
	switch {
	case f.shown.ended && f.end != nil:
		return report.InterfaceFailed, report.ReasonLost
	case f.shown.ended:
		return report.InterfaceStopped, report.ReasonNone
	case !f.host.now.Present:
		return report.InterfaceWaiting, report.ReasonStarting
	case !f.host.now.Up:
		return report.InterfaceDown, report.ReasonAdminDown
	case f.host.monitor.foreign:
		return report.InterfaceWaiting, report.ReasonForeign
	case f.fabric.att != nil && ladder == qprecovery.Healthy:
		return report.InterfaceUp, report.ReasonNone
	case f.fabric.att != nil:
		return report.InterfaceRecovering, f.rec.ladder.Reason().String()
	case f.fabric.dev.View().Session == nil:
		return report.InterfaceWaiting, report.ReasonDevice
	case !slices.Contains([]qprecovery.State{qprecovery.Idle, qprecovery.Detached, qprecovery.GivenUp}, ladder):
		return report.InterfaceWaiting, f.rec.ladder.Reason().String()
	case !f.rec.retry.at.IsZero():
		return report.InterfaceWaiting, report.ReasonQueuePair
	}
	return report.InterfaceWaiting, report.ReasonPort
}
