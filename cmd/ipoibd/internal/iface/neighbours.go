package iface

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/ud/vnet"
)

const (
	// collectEvery is how often to examine handles that posted requests may still use.
	collectEvery = 50 * time.Millisecond
	// strayInterval is how often the device is asked for stray datagrams while there are any. Their
	// sender loses its frames until it is answered.
	strayInterval = 50 * time.Millisecond
)

// neighbours is the peer table and everything its actions need.
type neighbours struct {
	f       *Iface
	table   *neigh.Table
	events  []neigh.Event // for the table
	actions []neigh.Action
	retired []neigh.DestroyAH // handles that a posted request may still use
	frame   []byte            // one frame for the host, with its virtio header
	strays  strays
	strayed chan struct{} // has a value after a stray datagram
	idle    bool          // the last DataIdle
	echoes  echoes
}

// use starts using the attachment and announces its address.
func (n *neighbours) use() {
	n.announce()
	if session := n.f.rec.att.session; n.strays.device != session {
		n.strays.end()
		n.strays = strays{device: session, stop: session.NotifyStrays(n.notifyStrays)}
	}
	n.strays.at = time.Now() // earlier strays count as well: they were sent to an earlier queue pair
	n.f.host.worker.do(func() func() {
		list, err := n.f.host.tap.Neighbours() // after a restart the host knows peers that the table does not
		if err != nil {
			return func() { n.f.log.Warn("cannot read the host's neighbours", "err", err) }
		}
		entries := make([]neigh.Neighbour, 0, len(list))
		for _, e := range list {
			entries = append(entries, neigh.Neighbour{IP: e.IP, MAC: e.MAC})
		}
		return func() {
			if n.f.rec.att != nil {
				n.step(neigh.HostNeighbours{Entries: entries})
			}
		}
	})
}

// announce gives the table the address and the limits of the queue pair.
func (n *neighbours) announce() {
	a := n.f.rec.att
	believed := n.f.reports.believed(a.plan)
	n.step(neigh.Attached{
		Self: a.address(), Broadcast: a.groups[a.plan.Broadcast().MGID], Groups: a.groups,
		PKey: a.plan.PKey, QKey: a.plan.Broadcast().QKey, MTU: believed.MTU(), PortMTU: a.plan.ReceiveMTU(),
	})
}

// leave follows the end of the attachment, whose handles are closed with it.
func (n *neighbours) leave() {
	n.step(neigh.Detached{})
	n.retired = n.retired[:0]
	n.strays.at = time.Time{}
}

// hostChanged reports changes of ib0 to the table.
func (n *neighbours) hostChanged(old, st link.State) {
	if st.MAC != old.MAC {
		n.step(neigh.HostMAC{MAC: st.MAC})
	}
	if st.Master != old.Master || st.Up != old.Up || alone(st) != alone(old) {
		n.step(neigh.HostPortChanged{Alone: alone(st)})
	}
	n.step(neigh.HostAddrs{Addrs: n.f.ownAddrs()})
}

// rest reports to the table whether all lanes rest.
func (n *neighbours) rest() {
	idle := n.f.rec.att != nil && n.f.lanes.resting()
	if idle != n.idle {
		n.idle = idle
		n.step(neigh.DataIdle{Idle: idle})
	}
}

// deadline returns when to call expire; zero: never.
func (n *neighbours) deadline() time.Time {
	at, _ := n.table.NextDeadline()
	if len(n.retired) > 0 {
		at = earliest(at, time.Now().Add(collectEvery))
	}
	return earliest(at, n.strays.at)
}

// expire does what is due.
func (n *neighbours) expire(now time.Time) {
	if asks := &n.f.host.asks; len(*asks) > 0 && due(&(*asks)[0], now) {
		*asks = (*asks)[1:]
		n.f.host.worker.do(func() func() {
			targets, err := n.f.host.tap.Unresolved()
			return func() { n.hostAsks(targets, err) }
		})
	}
	if due(&n.strays.at, now) {
		n.readStrays(now)
	}
	n.step(neigh.Tick{})
}

// hostAsks asks for the neighbours that the host waits for.
func (n *neighbours) hostAsks(targets []netip.Addr, err error) {
	if err != nil {
		n.f.log.Warn("cannot read the host's unresolved neighbours", "err", err)
	}
	if len(targets) > 0 && n.f.rec.att != nil {
		n.step(neigh.HostAsks{Targets: targets})
	}
}

// step runs the table and its actions. The first lane sends what the table sends to the
// fabric. Requests for handles that could not be queued are reported to the table as failed;
// it pauses before it repeats them.
func (n *neighbours) step(ev neigh.Event) {
	att := n.f.rec.att
	n.events = append(n.events[:0], ev)
	for i := 0; i < len(n.events); i++ {
		n.actions = n.table.Step(time.Now(), n.events[i], n.actions[:0])
		for _, a := range n.actions {
			switch a := a.(type) {
			case neigh.SendFabric:
				n.f.lanes.all[0].tx.Inject(a.Dest, a.Msg)
			case neigh.SendHost:
				n.sendHost(a.Frame)
			case neigh.CreateAH:
				if att == nil || !att.ahs.Create(a.ID, att.plan.PeerAH(a.DGID)) {
					n.events = append(n.events, neigh.AHFailed{ID: a.ID, Err: hca.ErrBusy})
				}
			case neigh.DestroyAH:
				n.retired = append(n.retired, a)
			case neigh.EchoReply:
				n.echoes.answered(a)
				n.f.answered(a)
			case neigh.Publish:
				n.f.snapshot.Publish(a.Snapshot)
			}
		}
		clear(n.actions)
	}
	clear(n.events)
	if len(n.retired) > 0 && att != nil {
		n.collect()
	}
}

// fromHost and fromFabric handle an item of the slow path.
func (n *neighbours) fromHost(it *slowItem) {
	n.step(neigh.FromHost{Frame: it.data})
	n.f.slow.host.done(it)
}

func (n *neighbours) fromFabric(q slowQueue, it *slowItem) {
	n.step(neigh.FromFabric{Msg: it.data, SrcGID: it.from.GID, SrcQPN: it.from.QPN, Multicast: it.from.Multicast})
	q.done(it)
}

// sendHost writes a frame of the slow path to the TAP, which counts what the
// kernel refuses.
func (n *neighbours) sendHost(frame []byte) {
	b := append(n.frame[:0], make([]byte, vnet.HeaderLen)...)
	n.frame = append(b, frame...)
	at := time.Now()
	accepted, err := n.f.host.tap.WriteVectors([][][]byte{{n.frame}}, []bool{false})
	if err != nil {
		n.f.log.Debug("cannot write a frame to the host", "err", err)
	}
	if accepted == 1 {
		n.f.lanes.records.wroteSlow(at, n.frame)
	}
}

// created handles the result of a request for a handle, or the failure to destroy one.
func (n *neighbours) created(r endpoint.AHResult) {
	if r.ID == 0 {
		n.f.log.Error("cannot close an address handle", "err", r.Err)
		n.f.rec.requestResetIfStuck(r.Err)
		return
	}
	if r.Err != nil {
		n.f.log.Debug("cannot create address handle", "err", r.Err)
		n.step(neigh.AHFailed{ID: r.ID, Err: r.Err})
		return
	}
	n.step(neigh.AHReady{ID: r.ID, AH: r.AH})
}

// collect destroys the handles that no posted request can use any more.
func (n *neighbours) collect() {
	safe, ahs := n.f.lanes.epoch(), n.f.rec.att.ahs
	var unused []hca.AH
	n.retired = slices.DeleteFunc(n.retired, func(d neigh.DestroyAH) bool {
		if d.LastEpoch >= safe {
			return false
		}
		unused = append(unused, d.AH)
		return true
	})
	if len(unused) > 0 {
		ahs.Destroy(unused)
	}
	for _, l := range n.f.lanes.all {
		if len(n.retired) > 0 {
			l.tx.Wake() // its epoch advances only in its pump
		}
	}
}

// strays records how far the stray datagrams of a device were read.
type strays struct {
	device hca.StrayReporter // in use last
	stop   func()            // ends its notifications; nil: there are none
	seen   uint64            // the latest number read
	last   time.Time         // when the device was last asked
	at     time.Time         // when to ask it next; zero: after its next notification
}

// end ends the notifications.
func (s *strays) end() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// notifyStrays wakes Run. Any goroutine may call it.
func (n *neighbours) notifyStrays() {
	signal(n.strayed)
}

// planStrays plans a reading after a notification. Without an attachment, the next one reads them.
func (n *neighbours) planStrays(now time.Time) {
	s := &n.strays
	if n.f.rec.att == nil || !s.at.IsZero() {
		return
	}
	if s.at = s.last.Add(strayInterval); s.at.Before(now) {
		s.at = now
	}
}

// readStrays reports the senders of stray datagrams since the last reading to the peer
// table. It leaves senders with another P_Key to the interface of that P_Key, and ignores
// those without the group's Q_Key, which are not members.
func (n *neighbours) readStrays(now time.Time) {
	s := &n.strays
	s.last = now
	senders, _ := s.device.Strays()
	plan, seen := n.f.rec.att.plan, s.seen
	for i := range senders {
		from := &senders[i]
		if from.Number <= seen {
			continue
		}
		s.seen = max(s.seen, from.Number)
		if from.PKey&^hca.PKeyMembership == plan.PKey&^hca.PKeyMembership && from.QKey == plan.Broadcast().QKey {
			n.step(neigh.Stray{GID: from.SGID, QPN: from.SrcQPN})
		}
	}
}
