package iface

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/neigh/sa"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
	"ipoibd/ud/vnet"
)

const (
	// collectEvery is how often to examine handles that posted requests may still use.
	collectEvery = 50 * time.Millisecond
	// strayInterval is how often the device is asked for stray datagrams while there are any. Their
	// sender loses its frames until it is answered.
	strayInterval = 50 * time.Millisecond
	// handlesLimit bounds the wait for the address handles of restored peers. Without them, only
	// the first segment of a large frame is kept until its handle is there.
	handlesLimit = 20 * time.Millisecond
)

// neighbours is the shell of the peer table. It sends through the first lane, and writes to ib0 what the table has
// for the host.
type neighbours struct {
	log     *slog.Logger
	tap     TAP
	lanes   *lanes
	table   *neigh.Table
	shown   *ud.Snapshot // what the lanes see of the table
	att     *attachment  // in use; nil: none
	member  *membership
	fast    *fast
	events  []neigh.Event
	actions []neigh.Action
	retired []neigh.DestroyAH // handles that a posted request may still use
	frame   []byte            // one frame for the host, with its virtio header
	strays  strays
	strayed chan struct{} // has a value after a stray datagram
	idle    bool          // the last DataIdle
	acted   bool          // the table has counted something since the last snapshot of the interface
	echoes  echoes
	replies []neigh.EchoReply // for Run: those that no ping waits for

	restored bool // there are peers of an interface that this one continues, and nothing was sent to them yet
}

// newNeighbours returns a table with the peers and stations of the interface that this one continues.
func newNeighbours(
	log *slog.Logger, tap TAP, ls *lanes, member *membership, fast *fast, bounds neigh.Config, former neigh.Restored,
) neighbours {
	n := neighbours{
		log: log, tap: tap, lanes: ls, member: member, fast: fast, shown: ls.peers, table: neigh.New(bounds),
		frame:   make([]byte, 0, vnet.HeaderLen+ipoib.MaxMTU),
		strayed: make(chan struct{}, 1),
		echoes:  echoes{},
	}
	n.restored = len(former.Peers) > 0
	n.step(former)
	return n
}

// use starts using an attachment, whose plan is believed, and announces its address. It returns the error of
// awaitHandles.
func (n *neighbours) use(a *attachment, believed port.Plan) error {
	n.att = a
	n.announce(believed)
	if n.strays.device != a.session {
		n.strays.end()
		stop := a.session.NotifyStrays(func() { signal(n.strayed) })
		n.strays = strays{device: a.session, stop: stop}
	}
	n.strays.at = time.Now() // earlier strays count as well: they were sent to an earlier queue pair
	return n.awaitHandles()
}

// awaitHandles waits until the data path can send to the restored peers, once. It returns why a handle could not be
// destroyed.
func (n *neighbours) awaitHandles() (failed error) {
	if !n.restored {
		return nil
	}
	n.restored = false
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

// announce gives the table the address and the limits of the queue pair.
func (n *neighbours) announce(believed port.Plan) {
	a := n.att
	n.step(neigh.Attached{
		Self: a.address(), Broadcast: a.groups[a.plan.Broadcast().MGID], Groups: a.groups,
		LID: a.plan.LID, LMC: a.plan.LMC,
		QKey: a.plan.Broadcast().QKey, MTU: believed.MTU(), PortMTU: a.plan.ReceiveMTU(),
	})
}

// hostNeighbours takes what the host knows of its neighbours: after a restart, peers that the table does not.
func (n *neighbours) hostNeighbours(list []link.Neighbour, err error) {
	if err != nil {
		n.log.Warn("cannot read the host's neighbours", "err", err)
	}
	if err != nil || n.att == nil {
		return
	}
	entries := make([]neigh.Neighbour, 0, len(list))
	for _, e := range list {
		entries = append(entries, neigh.Neighbour{IP: e.IP, MAC: e.MAC})
	}
	n.step(neigh.HostNeighbours{Entries: entries})
}

// leave follows the end of the attachment, whose handles are closed with it.
func (n *neighbours) leave() {
	n.att = nil
	n.step(neigh.Detached{})
	n.retired = n.retired[:0]
	n.strays.at = time.Time{}
}

// hostChanged reports changes of ib0 to the table, and the addresses of the host.
func (n *neighbours) hostChanged(old, st link.State, own []netip.Prefix) {
	if st.MAC != old.MAC {
		n.step(neigh.HostMAC{MAC: st.MAC})
	}
	if st.Master != old.Master || st.MasterMAC != old.MasterMAC || st.Up != old.Up {
		n.step(neigh.HostPort{Up: st.Up, Bridge: st.Master, Master: st.MasterMAC})
	}
	n.step(neigh.HostAddrs{Addrs: own})
}

// rest reports to the table whether all lanes rest.
func (n *neighbours) rest() {
	if idle := n.att != nil && n.lanes.resting() && n.fast.resting(time.Now()); idle != n.idle {
		n.idle = idle
		n.step(neigh.DataIdle{Idle: idle})
	}
}

// deadline returns when to call expire; zero: never.
func (n *neighbours) deadline() time.Time {
	at, _ := n.table.NextDeadline()
	if len(n.retired)+len(n.fast.due) > 0 {
		at = earliest(at, time.Now().Add(collectEvery))
	}
	return earliest(at, n.strays.at)
}

// expire does what is due.
func (n *neighbours) expire(now time.Time) {
	if due(&n.strays.at, now) {
		n.readStrays(now)
	}
	for _, ev := range n.fast.traffic(now) {
		n.step(ev)
	}
	n.step(neigh.Tick{})
}

// pathsFound passes on answers about paths.
func (n *neighbours) pathsFound(answers []sa.Action) {
	for _, a := range answers {
		switch a := a.(type) {
		case sa.PathFound:
			n.step(neigh.PathFound{GID: a.Key.DGID, Path: hca.UDPath{
				DLID: hca.LID(a.Path.DLID), SL: a.Path.SL, Rate: uint8(a.Path.Rate), HopLimit: a.Path.Routing.HopLimit,
				Traffic: a.Path.Routing.Class, FlowLabel: a.Path.Routing.FlowLabel,
			}})
		case sa.PathFailed:
			n.log.Debug("no path", "gid", a.Key.DGID.String(), "reason", a.Reason.String(), "status", a.Status.String())
			n.step(neigh.PathFailed{GID: a.Key.DGID})
		}
	}
}

// hostAsks asks for the neighbours that the host waits for.
func (n *neighbours) hostAsks(targets []netip.Addr, err error) {
	if err != nil {
		n.log.Warn("cannot read the host's unresolved neighbours", "err", err)
	}
	if len(targets) > 0 && n.att != nil {
		n.step(neigh.HostAsks{Targets: targets})
	}
}

// step runs the table and its actions. Requests for handles that could not be queued are reported to the table as
// failed; it pauses before it repeats them.
func (n *neighbours) step(ev neigh.Event) {
	n.events = append(n.events[:0], ev)
	for i := 0; i < len(n.events); i++ {
		n.actions = n.table.Step(time.Now(), n.events[i], n.actions[:0])
		_, tick := n.events[i].(neigh.Tick)
		n.acted = n.acted || !tick || len(n.actions) > 0
		for _, a := range n.actions {
			switch a := a.(type) {
			case neigh.SendFabric:
				n.lanes.all[0].tx.Inject(a.Dest, a.Msg)
			case neigh.SendHost:
				n.sendHost(a.Frame)
			case neigh.FindPath:
				if !n.member.findPath(a) {
					n.events = append(n.events, neigh.PathFailed{GID: a.GID})
				}
			case neigh.CreateAH:
				if n.att == nil || !n.att.ahs.Create(a.ID, n.att.plan.PeerAH(a.DGID, a.Path)) {
					n.events = append(n.events, neigh.AHFailed{ID: a.ID, Err: hca.ErrBusy})
				}
			case neigh.DestroyAH:
				n.retired = append(n.retired, a)
			case neigh.EchoReply:
				if !n.echoes.answered(a) {
					n.replies = append(n.replies, a)
				}
			case neigh.GroupsChanged:
				n.member.changed()
			case neigh.Publish:
				n.events = n.fast.publish(a.Snapshot, n.events)
				n.shown.Publish(a.Snapshot)
			}
		}
		clear(n.actions)
	}
	clear(n.events)
	if len(n.retired)+len(n.fast.due) > 0 && n.att != nil {
		n.collect()
	}
}

// fromHost and fromFabric handle an item of a queue of the slow path.
func (n *neighbours) fromHost(q slowQueue, it *slowItem) {
	n.step(neigh.FromHost{Frame: it.data})
	q.done(it)
}

func (n *neighbours) fromFabric(q slowQueue, it *slowItem) {
	n.step(neigh.FromFabric{Msg: it.data, From: it.from.UDSource, Multicast: it.from.Multicast})
	q.done(it)
}

// drain handles everything that waits for the slow path.
func (n *neighbours) drain(s slowPath) {
	for {
		select {
		case it := <-s.host.ready:
			n.fromHost(s.host, it)
		case it := <-s.guests.ready:
			n.fromHost(s.guests, it)
		case it := <-s.first.ready:
			n.fromFabric(s.first, it)
		case it := <-s.fabric.ready:
			n.fromFabric(s.fabric, it)
		default:
			return
		}
	}
}

// sendHost writes a frame of the slow path to the TAP, which counts what the
// kernel refuses.
func (n *neighbours) sendHost(frame []byte) {
	b := append(n.frame[:0], make([]byte, vnet.HeaderLen)...)
	n.frame = append(b, frame...)
	at := time.Now()
	accepted, err := n.tap.WriteVectors([][][]byte{{n.frame}}, []bool{false})
	if err != nil {
		n.log.Debug("cannot write a frame to the host", "err", err)
	}
	if accepted == 1 {
		n.lanes.records.wroteSlow(at, n.frame)
	}
}

// created handles the result of a request for a handle. It returns why one could not be destroyed.
func (n *neighbours) created(r endpoint.AHResult) error {
	switch {
	case r.ID == 0:
		n.log.Error("cannot close an address handle", "err", r.Err)
		return r.Err
	case r.Err != nil:
		n.log.Debug("cannot create address handle", "err", r.Err)
		n.step(neigh.AHFailed{ID: r.ID, Err: r.Err})
	default:
		n.step(neigh.AHReady{ID: r.ID, AH: r.AH})
	}
	return nil
}

// collect destroys the handles that no posted request can use any more, and hands peers over to the fast path.
func (n *neighbours) collect() {
	safe := n.lanes.epoch()
	n.fast.handOver(safe)
	var unused []hca.AH
	n.retired = slices.DeleteFunc(n.retired, func(d neigh.DestroyAH) bool {
		if d.LastEpoch >= safe {
			return false
		}
		unused = append(unused, d.AH)
		return true
	})
	if len(unused) > 0 {
		n.att.ahs.Destroy(unused)
	}
	for _, l := range n.lanes.all {
		if len(n.retired)+len(n.fast.due) > 0 {
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

// planStrays plans a reading after a notification. Without an attachment, the next one reads them.
func (n *neighbours) planStrays(now time.Time) {
	s := &n.strays
	if n.att == nil || !s.at.IsZero() {
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
	plan, seen := n.att.plan, s.seen
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
