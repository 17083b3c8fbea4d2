package iface

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/vnet"
)

const (
	// collectEvery is how often to examine handles that posted requests may still use.
	collectEvery = 50 * time.Millisecond
	// strayInterval is how often the device is asked for stray datagrams. Their sender
	// loses its frames until it is answered.
	strayInterval = 50 * time.Millisecond
)

// neighbours is the peer table and everything its actions need.
type neighbours struct {
	log      *slog.Logger
	tap      TAP
	lanes    lanes // the first one sends what the table sends to the fabric
	snapshot *ud.Snapshot
	worker   *worker      // closes handles
	failed   func(error)  // called when a handle could not be closed
	att      *attachment  // in use; nil: none
	table    *neigh.Table // the rest is Run's
	actions  []neigh.Action
	refused  []uint64          // requests for handles that could not be queued
	retired  []neigh.DestroyAH // handles that a posted request may still use
	frame    []byte            // one frame for the host, with its virtio header
	asks     asks
	strays   strays
}

// use starts using an attachment and announces its address.
func (n *neighbours) use(a *attachment) {
	n.att = a
	n.announce()
	if n.strays.device != a.session {
		n.strays = strays{device: a.session}
	}
	n.strays.at = time.Now()        // earlier strays count as well: they were sent to an earlier queue pair
	list, err := n.tap.Neighbours() // after a restart the host knows peers that the table does not
	if err != nil {
		n.log.Warn("cannot read the host's neighbours", "err", err)
		return
	}
	entries := make([]neigh.Neighbour, 0, len(list))
	for _, e := range list {
		entries = append(entries, neigh.Neighbour{IP: e.IP, MAC: e.MAC})
	}
	n.step(neigh.HostNeighbours{Entries: entries})
}

// announce gives the table the address and the limits of the queue pair.
func (n *neighbours) announce() {
	a := n.att
	n.step(neigh.Attached{
		Self: a.address(), Broadcast: a.groups[a.plan.Broadcast().MGID], Groups: a.groups,
		PKey: a.plan.PKey, QKey: a.plan.Broadcast().QKey, MTU: a.plan.MTU(),
	})
}

// leave ends the use of the attachment, whose handles are closed with it.
func (n *neighbours) leave() {
	n.att = nil
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
	n.step(neigh.HostAddrs{Addrs: slices.Collect(st.SelfAddrs())})
}

// deadline returns when to call expire; zero: never.
func (n *neighbours) deadline() time.Time {
	at, _ := n.table.NextDeadline()
	if len(n.retired) > 0 {
		at = qprecovery.Earlier(at, time.Now().Add(collectEvery))
	}
	return qprecovery.Earlier(qprecovery.Earlier(at, n.asks.next()), n.strays.at)
}

// expire does what is due.
func (n *neighbours) expire(now time.Time) {
	if at := n.asks.next(); !at.IsZero() && !now.Before(at) {
		n.asks = n.asks[1:]
		targets, err := n.tap.Unresolved()
		if err != nil {
			n.log.Warn("cannot read the host's unresolved neighbours", "err", err)
		}
		if len(targets) > 0 {
			n.step(neigh.HostAsks{Targets: targets})
		}
	}
	if at := n.strays.at; !at.IsZero() && !now.Before(at) {
		n.readStrays(now)
	}
	n.step(neigh.Tick{})
}

// step runs the table and its actions. Requests for handles that could not be queued are
// reported to the table as failed; it pauses before it repeats them.
func (n *neighbours) step(ev neigh.Event) {
	for n.stepOnce(ev); len(n.refused) > 0; {
		id := n.refused[0]
		n.refused = n.refused[1:]
		n.stepOnce(neigh.AHFailed{ID: id, Err: hca.ErrBusy})
	}
	if len(n.retired) > 0 && n.att != nil {
		n.collect()
	}
}

func (n *neighbours) stepOnce(ev neigh.Event) {
	n.actions = n.table.Step(time.Now(), ev, n.actions[:0])
	for _, a := range n.actions {
		switch a := a.(type) {
		case neigh.SendFabric:
			n.lanes[0].tx.Inject(a.Dest, a.Msg)
		case neigh.SendHost:
			n.sendHost(a.Frame)
		case neigh.CreateAH:
			if n.att == nil || !n.att.ahs.Create(a.ID, n.att.plan.PeerAH(a.DGID)) {
				n.refused = append(n.refused, a.ID)
			}
		case neigh.DestroyAH:
			n.retired = append(n.retired, a)
		case neigh.Publish:
			n.snapshot.Publish(a.Snapshot)
		}
	}
	clear(n.actions)
}

// sendHost writes a frame of the slow path to the TAP, which counts what the
// kernel refuses.
func (n *neighbours) sendHost(frame []byte) {
	b := append(n.frame[:0], make([]byte, vnet.HeaderLen)...)
	n.frame = append(b, frame...)
	if _, err := n.tap.WriteBatch([][]byte{n.frame}); err != nil {
		n.log.Debug("write frame to the host", "err", err)
	}
}

// created handles the result of a request for a handle.
func (n *neighbours) created(r device.AHResult) {
	if r.Err != nil {
		n.log.Debug("cannot create address handle", "err", r.Err)
		n.step(neigh.AHFailed{ID: r.ID, Err: r.Err})
		return
	}
	n.step(neigh.AHReady{ID: r.ID, AH: r.AH})
}

// collect closes the handles that no posted request can use any more, on the worker.
func (n *neighbours) collect() {
	safe, ahs := n.lanes.epoch(), n.att.ahs
	var unused []hca.AH
	n.retired = slices.DeleteFunc(n.retired, func(d neigh.DestroyAH) bool {
		if d.LastEpoch >= safe {
			return false
		}
		unused = append(unused, d.AH)
		return true
	})
	if len(unused) > 0 {
		n.worker.do(func() func() {
			var errs []error
			for _, ah := range unused {
				errs = append(errs, ahs.Destroy(ah))
			}
			return func() { n.failed(errors.Join(errs...)) }
		})
	}
	for _, l := range n.lanes {
		if len(n.retired) > 0 {
			l.tx.Wake() // its epoch advances only in its pump
		}
	}
}

// askTimes are the times, after the carrier was raised, at which the interface asks for the
// neighbours that the host waits for: at once and several times soon after, since the kernel
// takes a moment to notice the carrier and drops its own requests until then, and since a
// switch may start forwarding later than this host. Within a second the kernel itself asks again.
var askTimes = [...]time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, 600 * time.Millisecond}

// asks are the times at which to ask for the host's neighbours on its behalf. The kernel
// forgot them when the carrier went down, and its requests since then were lost. Its next
// request may be a second away, which prolongs the outage; a TCP connection that sends in the
// meantime waits much longer.
type asks []time.Time

// follow begins when the carrier is raised, and ends when it is taken down.
func (a *asks) follow(carrier bool, now time.Time) {
	*a = nil
	for _, after := range askTimes {
		if carrier {
			*a = append(*a, now.Add(after))
		}
	}
}

// next returns the next time; zero: never.
func (a asks) next() time.Time {
	if len(a) == 0 {
		return time.Time{}
	}
	return a[0]
}

// strays records how far the stray datagrams of a device were read.
type strays struct {
	device hca.StrayReporter // in use last
	seen   uint64            // the latest number read
	at     time.Time         // when to ask the device next; zero: never
}

// readStrays reports the senders of stray datagrams since the last reading to the peer
// table. It leaves senders with another P_Key to the interface of that P_Key, and ignores
// those without the group's Q_Key, which are not members. It does not ask a device again
// that never reports any.
func (n *neighbours) readStrays(now time.Time) {
	s := &n.strays
	senders, ok := s.device.Strays()
	if !ok {
		s.at = time.Time{}
		return
	}
	s.at = now.Add(strayInterval)
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
