package iface

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

var mdns = netip.MustParseAddr("224.0.0.251")

// mdnsGroup is the group of mdns, carried by an underlay address of its own.
func mdnsGroup() port.Group {
	return port.Group{
		MGID:   ipoib.GroupMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault, mdns),
		Attach: hca.GIDFromAddr(netip.MustParseAddr("239.1.2.3")), QKey: port.QKey,
		Path: hca.UDPath{HopLimit: port.GroupHops},
	}
}

// join makes groups those that the interface has joined besides the broadcast group.
func (h *testHost) join(groups ...port.Group) {
	h.onRun(func(f *Iface) {
		f.fabric.want.Joined = groups
		f.rec.reconcile()
	})
	time.Sleep(time.Second) // the handle of a group that was left waits for its last use
	synctest.Wait()
}

// hears reports how often a packet of a to mdns arrives at b.
func hears(t *testing.T, a, b *testHost) (n int) {
	t.Helper()
	a.sendIP(ipoib.GroupMAC(mdns), mdns, 100, 7)
	for f := b.takeIP(); f != nil; f = b.takeIP() {
		if ipoib.MAC(f[:6]) != ipoib.GroupMAC(mdns) {
			t.Errorf("a frame for %s", ipoib.MAC(f[:6]))
		}
		n++
	}
	return n
}

// A group that is joined or left while the interface is up changes nothing but the group:
// the queue pair and the carrier stay. Messages to the group reach those that are attached to
// it; without it they go to the broadcast group.
func TestGroupsChangeOnALiveQueuePair(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		before := a.status()
		a.tap.forget()
		if n := hears(t, a, b); n != 1 {
			t.Errorf("by the broadcast group: %d", n)
		}
		a.join(mdnsGroup())
		if n := hears(t, a, b); n != 0 {
			t.Errorf("not attached, but received %d", n)
		}
		b.join(mdnsGroup())
		if n := hears(t, a, b); n != 1 {
			t.Errorf("attached, received %d", n)
		}
		if g := a.status().Groups; len(g) != 2 || g[1].MGID != mdnsGroup().MGID {
			t.Errorf("groups: %v", g)
		}
		a.inject(faults.Fault{Kind: faults.CQError}) // a new queue pair attaches to the group again
		b.inject(faults.Fault{Kind: faults.CQError})
		pingPong(t, a, b)
		time.Sleep(time.Second)
		drainInbox(a, b)
		if n := hears(t, a, b); n != 1 {
			t.Errorf("after a recovery, received %d", n)
		}
		healed := a.status()
		a.join()
		if n := hears(t, a, b); n != 1 {
			t.Errorf("by the broadcast group again: %d", n)
		}
		after := a.status()
		if healed.QP.Generation == before.QP.Generation || after.QP.QPN != healed.QP.QPN || len(after.Groups) != 1 || after.State != report.InterfaceUp {
			t.Errorf("queue pair %+v, was %+v; groups %v", after.QP, healed.QP, after.Groups)
		}
		if got := a.tap.forget(); len(got) > 0 {
			t.Errorf("carrier went %v", got)
		}
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}

// A group that the device refuses, which a guest may have wanted, costs nothing but the group. A notice says so until the
// group is no longer wanted.
func TestRefusedGroup(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		before := a.status()
		a.tap.forget()
		bad := mdnsGroup()
		bad.Attach = hca.GIDFromAddr(b.under)
		for _, c := range []struct {
			name   string
			wanted []port.Group
			notice string
		}{
			{"refused", []port.Group{bad}, "1 multicast groups"},
			{"no longer wanted", nil, ""},
		} {
			a.join(c.wanted...)
			s := a.status()
			if s.State != report.InterfaceUp || s.QP.QPN != before.QP.QPN || s.QP.Generation != before.QP.Generation {
				t.Errorf("%s: state %s, queue pair %+v, was %+v", c.name, s.State, s.QP, before.QP)
			}
			if text := s.Notices.Text(); !strings.Contains(text, c.notice) || c.notice == "" && text != before.Notices.Text() {
				t.Errorf("%s: notices %q, want %q", c.name, text, c.notice)
			}
			reach(t, a, b)
		}
		a.join(bad)
		a.inject(faults.Fault{Kind: faults.CQError}) // a new queue pair does without the group as well
		pingPong(t, a, b)
		if s := a.status(); s.State != report.InterfaceUp || s.QP.Generation == before.QP.Generation {
			t.Errorf("after a recovery: state %s, queue pair %+v", s.State, s.QP)
		}
		if got := a.tap.forget(); len(got) > 0 {
			t.Errorf("carrier went %v", got)
		}
	})
}
