package neigh

import (
	"net/netip"
	"time"

	"ipoibd/hca"
)

// Table is the neighbour table of one interface. It is passive and must be used
// by one goroutine. Create it with [New].
//
// Its components point only to those above them.
type Table struct {
	step    step
	host    host
	view    view
	silent  silent
	lids    lids
	handles handles
	peers   peers

	translator translator
	resolver   resolver // of addresses on the fabric
	seeker     resolver // of addresses behind ib0
	querier    querier
	notices    notices

	echoes        rate      // requests that were answered
	introductions rate      // requests before pings
	marksDue      time.Time // when readMarks is due; zero if there are no marks to read
	idle          bool      // the data path sets no marks; see DataIdle
	sweepDue      time.Time // when sweep is due; zero if there is nothing to sweep
}

// New returns an empty table, detached.
func New(conf Config) *Table {
	t := &Table{}
	s, h, v := &t.step, &t.host, &t.view
	h.step = s
	h.stations.init()
	v.step, v.host = s, h
	t.silent.step, t.silent.host = s, h
	t.lids = newLIDs(s, h)
	t.handles = handles{step: s, host: h, view: v, silent: &t.silent, lids: &t.lids, asked: make(map[uint64]*peer)}
	t.peers = peers{
		step: s, host: h, view: v, silent: &t.silent, lids: &t.lids, handles: &t.handles,
		conf: conf.normal(), live: newEntries(), past: newEntries(),
	}
	t.translator = translator{
		step: s, host: h, peers: &t.peers, dhcp: conf.DHCP, clients: make(dhcpClients),
	}
	t.resolver = resolver{
		step: s, interval: resolveInterval, tries: resolveTries, bytes: maxKeptBytes, share: maxResolutions, byIP: make(map[netip.Addr]*resolution),
		ask:    func(r *resolution) { h.sendRequest(h.stations.source(r.ip, r.src), r.ip) },
		giveUp: func(r *resolution) { s.dropKept(&r.kept, DropUnresolved) },
	}
	t.seeker = resolver{
		step: s, interval: seekInterval, tries: seekTries, bytes: maxSoughtBytes, share: maxSoughtPerPeer, byIP: make(map[netip.Addr]*resolution),
		ask: t.seek, giveUp: t.unanswered,
	}
	t.querier = querier{step: s, host: h, peers: &t.peers}
	t.notices = notices{
		step: s, host: h, view: v, handles: &t.handles,
		byGID: make(map[hca.GID]int), last: make(map[endpoint]notice), asked: make(map[uint64]endpoint),
	}
	return t
}

// Step applies an event at time now and appends the resulting actions to out.
// now must not decrease from call to call. Step never blocks and keeps no
// reference to the slices of ev or to out.
func (t *Table) Step(now time.Time, ev Event, out []Action) []Action {
	t.step.now, t.step.out = now, out
	t.expire()
	switch ev := ev.(type) {
	case FromHost:
		t.fromHost(ev.Frame)
	case FromFabric:
		t.fromFabric(ev)
	case Attached:
		t.attach(ev)
	case Detached:
		t.detach()
	case AHReady:
		if !t.notices.created(ev) {
			t.handles.created(ev)
		}
	case AHFailed:
		if !t.notices.failed(ev) {
			t.handles.failed(ev)
		}
	case PathFound:
		t.pathAnswered(ev.GID, ev.Path)
	case PathFailed:
		t.pathAnswered(ev.GID, hca.UDPath{})
	case HostAddrs:
		t.host.setAddrs(ev)
	case HostMAC:
		t.hostMAC(ev.MAC)
	case HostPort:
		t.hostPort(ev)
	case HostNeighbours:
		t.peers.hints = newHints(ev.Entries)
	case Stray:
		e := endpoint{ev.GID, ev.QPN}
		t.notices.answer(e, t.peers.live.byEndpoint[e])
	case HostAsks:
		t.host.ask(ev.Targets)
	case Ping:
		t.ping(ev)
	case Restored:
		t.peers.restore(ev.Peers)
		t.host.stations.restore(ev.Stations, t.step.now)
	case DataIdle:
		t.dataIdle(ev.Idle)
	case Carried:
		t.carried(ev)
	case Tick:
	}
	t.stationsChanged()
	t.schedule()
	t.view.publish()
	out, t.step.out = t.step.out, nil
	return out
}

// NextDeadline returns the latest time for the next call of Step, or false if
// Step need not be called before the next event.
func (t *Table) NextDeadline() (time.Time, bool) {
	var first, announce time.Time
	if t.host.link.up {
		announce = t.host.news.next()
	}
	for _, at := range [...]time.Time{
		t.resolver.retries.next(),
		t.seeker.retries.next(),
		t.handles.pauses.next(),
		t.peers.doubts.next(),
		t.silent.next(),
		t.querier.deadline(),
		announce,
		t.marksDue,
		t.sweepDue,
		t.view.next(),
	} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, !first.IsZero()
}

// expire runs everything that is due.
func (t *Table) expire() {
	t.resolver.expire()
	t.seeker.expire()
	t.handles.expire()
	t.peers.expireDoubts()
	t.querier.expire()
	if !t.marksDue.IsZero() && !t.marksDue.After(t.step.now) {
		t.marksDue = time.Time{}
		t.peers.readMarks()
	}
	for p, ok := t.silent.due(); ok; p, ok = t.silent.due() {
		if t.silent.verify(p) {
			t.handles.renew(p) // in case the path to it has changed
		}
	}
	t.host.announceDue()
	if !t.sweepDue.IsZero() && !t.sweepDue.After(t.step.now) {
		t.sweepDue = time.Time{}
		t.peers.sweep()
		t.lids.sweep(t.peers.live.byGID)
		t.host.stations.sweep(t.step.now)
	}
}

// dataIdle reads the last marks when the data path becomes idle.
func (t *Table) dataIdle(idle bool) {
	if t.idle = idle; idle {
		t.marksDue = time.Time{}
		t.peers.readMarks()
	}
}

// carried marks and counts data that has not passed the data path. The peer may be gone.
func (t *Table) carried(ev Carried) {
	p := t.peers.live.byMAC[ev.MAC]
	if p == nil {
		return
	}
	p.sent.add(ev.Sent)
	p.heard.add(ev.Heard)
}

// schedule arms readMarks while there are peers and the data path is not idle, and sweep while there is anything
// that can expire.
func (t *Table) schedule() {
	if t.marksDue.IsZero() && !t.idle && len(t.peers.live.byEndpoint) > 0 {
		t.marksDue = t.step.now.Add(markInterval)
	}
	if t.sweepDue.IsZero() && (len(t.peers.live.byEndpoint)+len(t.lids.paths) > 0 || len(t.host.stations.behind())+len(t.host.stations.absent) > 0) {
		t.sweepDue = t.step.now.Add(sweepInterval)
	}
}

// Stats returns the counters and the current sizes.
func (t *Table) Stats() Stats {
	s := t.step.stats
	s.Heard, s.Used = t.peers.live.heard.Len(), t.peers.live.used.Len()
	s.StationsFull = t.host.stations.full()
	s.Resolutions = len(t.resolver.byIP) + len(t.seeker.byIP)
	return s
}

// Asked returns how many handles are requested and not made yet.
func (t *Table) Asked() int { return len(t.handles.asked) }

// Shown reports whether the last snapshot has all changes.
func (t *Table) Shown() bool { return !t.view.dirty }
