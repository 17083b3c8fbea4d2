package iface

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/subnet"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/neigh/sa"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

const (
	// readGroupsEvery is how often the host's list of groups is read, because the kernel does not report its changes. The
	// host's IGMP and MLD reports do, if it sends them.
	readGroupsEvery = time.Second
	// regroupPause is the least time between two looks at the groups of the stations, which take 10 ms if guests want
	// 10,000 (port.BenchmarkMulticastList).
	regroupPause = 100 * time.Millisecond
	// joinRate bounds the joins for the stations, so that no guest keeps the subnet manager busy. At first the interface
	// joins as many groups as it may have, at once.
	joinRate rate.Limit = 10 // per second
)

// membership is the interface's use of the subnet administrator of an InfiniBand port: the groups that the port has
// joined for it, first the broadcast group, and those that the host and the stations behind it want. On Ethernet it has
// no user.
type membership struct {
	log       *slog.Logger
	ready     chan struct{} // has a value after a result
	session   *device.Session
	user      *subnet.User // of session; nil: none is needed
	broadcast hca.GID
	granted   map[hca.GID]port.Group
	failed    error // why the port is no member of the broadcast group; nil: it is, or has not been answered yet

	wanted  *port.MulticastList // of user
	refused map[hca.GID]bool    // the joins among them that have failed
	due     time.Time           // when to call want; zero: nothing has changed
	looked  time.Time           // when want was last called
	joins   *rate.Limiter       // for the stations
	host    hostGroups
}

func newMembership(log *slog.Logger) membership {
	return membership{log: log, ready: make(chan struct{}, 1), joins: rate.NewLimiter(joinRate, port.MaxGroups)}
}

// hostGroups are the groups of the host by the kernel's list, which is read on a worker.
type hostGroups struct {
	list    []netip.Addr
	err     error     // why it could not be read the last time
	at      time.Time // when to read it; zero: it is being read, or not needed
	reading bool
}

// follow begins and ends the use of the port that an interface wants on a session. An interface that is down uses none.
func (m *membership) follow(view device.View, want port.Want, down bool) {
	needed := !down && view.Session != nil && int(want.Port) <= len(view.Ports) &&
		view.Ports[want.Port-1].LinkLayer == hca.LinkLayerInfiniBand
	if m.user != nil && (!needed || m.session != view.Session) {
		m.leave()
	}
	if !needed || m.user != nil {
		return
	}
	p := view.Session.Subnet(want.Port)
	if p == nil { // the session has just ended
		return
	}
	m.session, m.user = view.Session, p.Use(want.PKey, func() { signal(m.ready) })
	m.broadcast = ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, want.PKey)
	m.granted, m.refused = map[hca.GID]port.Group{}, map[hca.GID]bool{}
	m.wanted = port.NewMulticastList(want.PKey)
	m.due, m.host.at = time.Now(), time.Now()
	m.user.Join(m.broadcast, false)
}

// leave leaves all groups.
func (m *membership) leave() {
	if m.user != nil {
		m.user.Close()
	}
	m.session, m.user, m.granted, m.failed = nil, nil, nil, nil
	m.wanted, m.refused = nil, nil
	m.due, m.host.at, m.host.list = time.Time{}, time.Time{}, nil
}

// deadline returns when there is something to do.
func (m *membership) deadline() time.Time { return earliest(m.due, m.host.at) }

// changed plans a call of want, because the groups of the host or of the stations have changed.
func (m *membership) changed() {
	if m.user != nil && m.due.IsZero() {
		m.due = m.looked.Add(regroupPause)
	}
}

// want joins the groups that the host and the stations behind it want, and leaves those that they no longer want.
func (m *membership) want(host, behind []netip.Addr) {
	m.looked = time.Now()
	allow := func() bool { return m.joins.AllowN(m.looked, 1) }
	join, leave := m.wanted.Want(slices.Concat(m.host.list, host), behind, allow)
	for _, mgid := range leave {
		m.user.Leave(mgid)
		delete(m.granted, mgid)
		delete(m.refused, mgid)
	}
	for _, mgid := range join {
		m.user.Join(mgid, false)
	}
	if m.wanted.Postponed() {
		m.changed()
	}
}

// read begins to read the host's list, and plans the next reading after this one. The list stays if it cannot be read.
func (m *membership) read(w *worker, tap TAP) {
	if m.host.reading {
		return // the result plans the next one
	}
	m.host.reading = true
	ask(w, tap.Groups, func(list []netip.Addr, err error) {
		h := &m.host
		if h.reading = false; m.user == nil {
			return
		}
		now := time.Now()
		h.at = now.Add(readGroupsEvery - time.Duration(now.UnixNano())%readGroupsEvery) // together with other interfaces
		switch {
		case errors.Is(err, link.ErrGone) || errors.Is(err, link.ErrClosed): // Run reports it
		case err != nil:
			if h.err == nil || h.err.Error() != err.Error() {
				m.log.Warn("cannot read the host's multicast groups; retrying every second", "err", err)
			}
		case !slices.Equal(list, h.list):
			h.list = list
			m.changed()
		}
		h.err = err
	})
}

// unserved returns how many of the groups that are wanted the port does not receive from, though it uses the subnet.
func (m *membership) unserved() int {
	if _, ok := m.granted[m.broadcast]; !ok {
		return 0
	}
	return m.wanted.Excess() + len(m.refused)
}

// take takes the results of the port, and returns those about paths.
func (m *membership) take() (paths []sa.Action) {
	if m.user == nil {
		return nil
	}
	for _, a := range m.user.Take() {
		switch a := a.(type) {
		case sa.Joined:
			m.granted[a.MGID] = groupOf(a)
			delete(m.refused, a.MGID)
			if a.MGID == m.broadcast {
				m.failed = nil
			}
		case sa.JoinFailed:
			level := slog.LevelDebug // the notice has their number
			delete(m.granted, a.MGID)
			if a.MGID == m.broadcast {
				m.failed = errors.New(joinFailures[a.Reason])
				if trouble := m.user.Trouble(); trouble != nil && a.Reason == sa.ReasonNoAnswer {
					m.failed = trouble // it was not asked
				}
				level = slog.LevelWarn
			} else {
				m.refused[a.MGID] = true
			}
			m.log.Log(context.Background(), level, "not a member of a group",
				"group", a.MGID.String(), "reason", a.Reason.String(), "status", a.Status.String())
		default:
			paths = append(paths, a)
		}
	}
	return paths
}

// findPath asks for the path to a port. It returns false if it cannot.
func (m *membership) findPath(want neigh.FindPath) bool {
	if m.user == nil {
		return false
	}
	m.user.FindPath(want.GID, m.granted[m.broadcast].Path.Traffic, want.Again)
	return true
}

// asking reports whether the result of joining the broadcast group is still awaited.
func (m *membership) asking() bool {
	_, granted := m.granted[m.broadcast]
	return m.user != nil && !granted && m.failed == nil
}

// groups returns the groups that the port has joined, or nil while it has not joined the broadcast group.
func (m *membership) groups() []port.Group {
	broadcast, ok := m.granted[m.broadcast]
	if !ok {
		return nil
	}
	out := []port.Group{broadcast}
	for mgid, g := range m.granted {
		if mgid != m.broadcast {
			out = append(out, g)
		}
	}
	slices.SortFunc(out[1:], func(a, b port.Group) int { return slices.Compare(a.MGID[:], b.MGID[:]) })
	return out
}

func groupOf(j sa.Joined) port.Group {
	g := j.Group
	return port.Group{
		MGID: j.MGID, Attach: j.MGID, QKey: g.QKey, MTU: g.MTU,
		Path: hca.UDPath{
			DLID: hca.LID(g.MLID), SL: g.SL, Rate: uint8(g.Rate),
			Traffic: g.Routing.Class, FlowLabel: g.Routing.FlowLabel, HopLimit: g.Routing.HopLimit,
		},
	}
}

// joinFailures say for operators why the port is no member of the broadcast group, and what to do about it.
var joinFailures = map[sa.Reason]string{
	sa.ReasonNoSM:          "no subnet manager has configured the port; start one on the subnet, such as opensm",
	sa.ReasonPortNotActive: "the port is not active",
	sa.ReasonPKeyAbsent:    "the P_Key is not in the port's table; add the port to the partition at the subnet manager",
	sa.ReasonNoAnswer:      "the subnet administrator does not answer; look for the subnet manager's log",
	sa.ReasonBusy:          "the subnet administrator is busy; retrying",
	sa.ReasonRedirected:    "the subnet administrator redirects requests to another port, which is not supported",
	sa.ReasonNoResources:   "the subnet manager has no room for another group",
	sa.ReasonDenied:        "the subnet manager refuses this port; look for its log",
	sa.ReasonBadAnswer:     "the subnet administrator's answer is invalid",
	sa.ReasonRefused:       "the subnet administrator refuses the join; look for the subnet manager's log",
	sa.ReasonNoGroup: "the partition has no broadcast group for IPoIB; " +
		"give it the flag ipoib in the partition configuration of the subnet manager",
	sa.ReasonExceedsPort: "the MTU or the rate of the partition's broadcast group is above that of the port; " +
		"lower it in the partition configuration of the subnet manager",
	sa.ReasonBadGroup: "the subnet administrator does not know the group's MGID as one of IPoIB",
	sa.ReasonLimit:    "this port has joined too many groups",
}
