package iface

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa/satest"
	"ipoibd/qprecovery"
)

// soon is how long anything may take that a subnet manager or an operator changes.
const soon = 2 * time.Second

// talk makes two hosts send to each other every 10 ms, and returns how many frames were lost each way.
func talk(t *testing.T, a, b *testHost, length time.Duration) (fromA, fromB int) {
	t.Helper()
	way := func(from, to *testHost) (lost int) {
		mac, ok := from.neighbour(to.ip)
		if !ok {
			t.Fatalf("%s does not know %s", from.name, to.name)
		}
		from.sendIP(mac, to.ip, 100, 1)
		lost = 1
		for to.takeIP() != nil {
			lost--
		}
		return lost
	}
	for range length / (10 * time.Millisecond) {
		fromA += way(a, b)
		fromB += way(b, a)
		time.Sleep(10 * time.Millisecond)
	}
	return fromA, fromB
}

// reachSoon fails unless two hosts that know each other reach each other soon, in both directions. It returns how long
// that took.
func reachSoon(t *testing.T, a, b *testHost) time.Duration {
	t.Helper()
	took := until(func() bool {
		fromA, fromB := talk(t, a, b, 10*time.Millisecond)
		return fromA == 0 && fromB == 0
	}, 0, time.Minute)
	t.Logf("they reach each other after %s", took)
	if took > soon {
		t.Errorf("they reach each other after %s", took)
	}
	drainInbox(a, b)
	reach(t, a, b)
	return took
}

// asked returns how many requests about a group or a port have arrived.
func (s *ibSubnet) asked(m mad.Method, about hca.GID) int {
	return s.sa.Asked()[satest.Request{Method: m, About: about}]
}

// move gives the port of a host another LID, which the subnet administrator knows.
func (s *ibSubnet) move(h *testHost, lid uint16) {
	s.sa.SetPort(h.port.Attr().GIDs[0].GID, lid)
	h.port.Change(func(a *hca.PortAttr) { a.LID = lid })
}

// unharmed fails unless an interface still has its queue pair and its carrier, and has climbed no rung of recovery.
func unharmed(t *testing.T, h *testHost, before report.Interface) {
	t.Helper()
	after := h.status()
	if after.State != report.InterfaceUp || after.QP.QPN != before.QP.QPN || after.QP.Generation != before.QP.Generation {
		t.Errorf("%s: %s %q, queue pair %+v, was %+v", h.name, after.State, after.Detail, after.QP, before.QP)
	}
	if n := rungsAbove(after.Recovery, qprecovery.RungNone); n != 0 {
		t.Errorf("%s: rungs %v by %v", h.name, after.Recovery.Rungs, after.Recovery.Reasons)
	}
	if got := h.tap.forget(); len(got) > 0 {
		t.Errorf("%s: carrier went %v", h.name, got)
	}
	checkAccounts(t, after)
}

// A flurry of CLIENT_REREGISTER costs few joins and no packet.
func TestInfiniBandReregisterFlurry(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		before, joins := a.status(), s.asked(mad.MethodSet, broadcast)
		a.tap.forget()
		var lost int
		for range 100 {
			a.port.Emit(hca.EventClientReregister)
			fromA, fromB := talk(t, a, b, 100*time.Millisecond)
			lost += fromA + fromB
		}
		if n := s.asked(mad.MethodSet, broadcast) - joins; n < 1 || n > 3 || lost != 0 {
			t.Errorf("%d joins, %d packets lost", n, lost)
		}
		unharmed(t, a, before)
	})
}

// The subnet manager moves to another port and service level: all memberships are set again there. No packet is lost,
// and the next query for a path goes to the new place.
func TestInfiniBandSubnetManagerMoves(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		before, joins := a.status(), s.asked(mad.MethodSet, broadcast)
		a.tap.forget()
		s.MoveSM(200, 5)
		if fromA, fromB := talk(t, a, b, soon); fromA+fromB != 0 {
			t.Errorf("%d and %d packets lost", fromA, fromB)
		}
		if n := s.asked(mad.MethodSet, broadcast) - joins; n < 2 || n > 4 {
			t.Errorf("%d joins of two ports", n)
		}
		unharmed(t, a, before)
		c := s.host(3)
		c.up()
		a.resolve(c.ip)
		reach(t, a, c)
	})
}

// The LID of a host's own port changes: its peers reach it again soon. The queue pair stays, and is not taken for
// frozen.
func TestInfiniBandOwnLIDChanges(t *testing.T) {
	for name, idle := range map[string]bool{"talking": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
				reach(t, a, b)
				time.Sleep(5 * time.Second)
				before, other := a.status(), b.status()
				a.tap.forget()
				b.tap.forget()
				queries := s.asked(mad.MethodGet, a.port.Attr().GIDs[0].GID)
				s.move(a, 9)
				if idle {
					time.Sleep(time.Minute)
				}
				if took := reachSoon(t, a, b); took > 100*time.Millisecond {
					t.Errorf("after %s: the new LID was not announced at once", took)
				}
				if n := s.asked(mad.MethodGet, a.port.Attr().GIDs[0].GID) - queries; n != 1 {
					t.Errorf("b has asked for the path to a %d times", n)
				}
				talk(t, a, b, 10*time.Second)
				unharmed(t, a, before)
				unharmed(t, b, other)
				if got := s.sa.Members(broadcast); !slices.Contains(got, 9) {
					t.Errorf("members of the broadcast group: LIDs %v", got)
				}
			})
		})
	}
}

// The LID of a host's own port changes, and its HCA reports no event. The next query of the port finds out, before the
// probes that go to the former LID lead to a reset of the device.
func TestInfiniBandOwnLIDChangesUnseen(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		opens := a.dev.Opens()
		a.inject(faults.Fault{Kind: faults.EventLost})
		s.move(a, 9)
		took := until(func() bool {
			fromA, fromB := talk(t, a, b, 10*time.Millisecond)
			return fromA == 0 && fromB == 0
		}, 0, time.Minute)
		talk(t, a, b, 10*time.Second)
		after := a.status()
		t.Logf("after %s; rungs %v by %v", took, after.Recovery.Rungs, after.Recovery.Reasons)
		if took > 5*time.Second || a.dev.Opens() != opens || after.State != report.InterfaceUp {
			t.Errorf("after %s: %s, %d opens, rungs %v by %v", took, after.State, a.dev.Opens(), after.Recovery.Rungs, after.Recovery.Reasons)
		}
	})
}

// The LID of a peer's port changes, which one query for its path finds out. What it sends meanwhile arrives.
func TestInfiniBandPeersLIDChanges(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		talk(t, a, b, 5*time.Second)
		before := a.status()
		a.tap.forget()
		about := b.port.Attr().GIDs[0].GID
		queries := s.asked(mad.MethodGet, about)
		s.move(b, 17)
		fromA, fromB := talk(t, a, b, 10*time.Second)
		t.Logf("lost: %d from a, %d from b", fromA, fromB)
		if n := s.asked(mad.MethodGet, about) - queries; n != 1 || fromB != 0 || fromA > int(soon/(10*time.Millisecond)) {
			t.Errorf("%d queries; %d packets lost to b, %d from it", n, fromA, fromB)
		}
		unharmed(t, a, before)
	})
}

// outage is a change of a's port during which it cannot be used.
type outage struct {
	name  string
	begin func(a *hca.PortAttr)
	end   func(a *hca.PortAttr)
	lasts time.Duration
}

// A port that becomes ACTIVE again carries packets soon.
func TestInfiniBandPortReturns(t *testing.T) {
	state := func(s hca.PortState) func(a *hca.PortAttr) { return func(a *hca.PortAttr) { a.State = s } }
	for _, o := range []outage{
		{"INIT", state(hca.PortInit), state(hca.PortActive), 5 * time.Second},
		{"DOWN", state(hca.PortDown), state(hca.PortActive), time.Minute},
		{"for a moment", state(hca.PortDown), state(hca.PortActive), 0},
		{
			"without LID",
			func(a *hca.PortAttr) { a.State, a.LID, a.SMLID = hca.PortInit, 0, 0 },
			func(a *hca.PortAttr) { a.State, a.LID, a.SMLID = hca.PortActive, 8, 1 },
			5 * time.Second,
		},
		{"P_Key removed", pkeys(0x8001), pkeys(0x8001, 0xffff), 5 * time.Second},
		{"table empty", pkeys(), pkeys(0xffff), 5 * time.Second},
	} {
		t.Run(o.name, func(t *testing.T) {
			onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) { o.test(t, a, b) })
		})
	}
}

func pkeys(keys ...hca.PKey) func(a *hca.PortAttr) {
	return func(a *hca.PortAttr) { a.PKeys = keys }
}

func (o *outage) test(t *testing.T, a, b *testHost) {
	reach(t, a, b)
	time.Sleep(5 * time.Second)
	before := a.status()
	a.port.Change(o.begin)
	synctest.Wait()
	time.Sleep(o.lasts)
	if st := a.status(); st.Carrier || st.Detail == "" {
		t.Errorf("meanwhile: carrier %t, %s %q", st.Carrier, st.State, st.Detail)
	} else {
		t.Logf("meanwhile: %s %q", st.State, st.Detail)
	}
	a.port.Change(o.end)
	reachSoon(t, a, b)
	after := a.status()
	t.Logf("queue pair %s, was %s", after.QP.QPN, before.QP.QPN)
	if n := rungsAbove(after.Recovery, qprecovery.RungNone); n != 0 {
		t.Errorf("rungs %v by %v", after.Recovery.Rungs, after.Recovery.Reasons)
	}
	if n := hears(t, b, a); n != 1 {
		t.Errorf("%d multicast packets arrived", n)
	}
	checkAccounts(t, after)
}

// A port that was down between two views has lost its memberships: they are set again, although nothing has changed.
func TestInfiniBandPortWasDownUnseen(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(5 * time.Second)
		joins := s.asked(mad.MethodSet, broadcast)
		a.port.Emit(hca.EventPortErr, hca.EventPortActive)
		reachSoon(t, a, b)
		if n := s.asked(mad.MethodSet, broadcast) - joins; n != 1 {
			t.Errorf("%d joins", n)
		}
		if n := hears(t, b, a); n != 1 {
			t.Errorf("%d multicast packets arrived", n)
		}
		if n := rungsAbove(a.status().Recovery, qprecovery.RungNone); n != 0 {
			t.Errorf("rungs %v", a.status().Recovery.Rungs)
		}
	})
}

// A subnet manager moves the P_Key to another index of the table: the queue pair is reset in place. So neither its number
// nor the carrier changes.
func TestInfiniBandPKeyMoves(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(5 * time.Second)
		before := a.status()
		a.tap.forget()
		for i, table := range [][]hca.PKey{{0x8001, 0xffff}, {0x8001, 0x8002, 0x7fff}, {0xffff, 0x7fff}} {
			a.port.Change(pkeys(table...))
			reachSoon(t, a, b)
			after := a.status()
			if after.QP.QPN != before.QP.QPN || after.Recovery.Rungs["reset_qp"] != uint64(i+1) ||
				after.Recovery.Reasons["port_changed"] != uint64(i+1) || rungsAbove(after.Recovery, qprecovery.RungResetQP) != 0 {
				t.Errorf("%04x: queue pair %s, was %s; rungs %v by %v", table, after.QP.QPN, before.QP.QPN, after.Recovery.Rungs, after.Recovery.Reasons)
			}
			if got := a.tap.forget(); len(got) > 0 {
				t.Errorf("%04x: carrier went %v", table, got)
			}
			if n := hears(t, b, a); n != 1 {
				t.Errorf("%04x: %d multicast packets arrived", table, n)
			}
			checkAccounts(t, after)
		}
	})
}

// A subnet manager gives the port another prefix, and so another GID: the interface has another address, which its peers
// learn.
func TestInfiniBandPrefixChanges(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(5 * time.Second)
		prefixed := func(h *testHost) hca.GID {
			gid := h.port.Attr().GIDs[0].GID
			copy(gid[:8], []byte{0xfe, 0xc0, 0, 0, 0, 0, 0, 7})
			return gid
		}
		for _, h := range []*testHost{a, b} {
			gid := prefixed(h)
			s.sa.SetPort(gid, h.port.Attr().LID)
			h.port.Change(func(a *hca.PortAttr) { a.GIDs[0].GID = gid })
			reachSoon(t, a, b)
			if got := h.status().QP.GID; got != gid {
				t.Errorf("GID %s, want %s", got, gid)
			}
		}
		for _, p := range a.status().Peers { // the former one has no address any more
			if len(p.IPs) > 0 && p.GID != b.port.Attr().GIDs[0].GID {
				t.Errorf("peer of a: %+v", p)
			}
		}
	})
}
