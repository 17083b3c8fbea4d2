package iface

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/mad"
)

// Hosts that know each other do not need the subnet administrator. Once it answers again, others are resolved soon.
func TestInfiniBandSilentSubnetAdministrator(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		c, d := s.host(3), s.host(4) // which a does not hear
		for _, h := range []*testHost{c, d} {
			s.fabric.Partition(a.name, h.name)
			h.up()
		}
		time.Sleep(2 * time.Minute)
		reach(t, a, b)
		before := a.status()
		a.tap.forget()
		b.tap.forget()
		s.lost.Store(true)
		s.fabric.Unpartition(a.name, c.name)
		fromA, fromB := 0, 0
		for range 60 {
			a.resolve(c.ip)
			la, lb := talk(t, a, b, 100*time.Millisecond)
			fromA, fromB = fromA+la, fromB+lb
			time.Sleep(900 * time.Millisecond)
		}
		if _, known := a.neighbour(c.ip); known || fromA+fromB != 0 {
			t.Errorf("%d and %d packets lost; a knows c: %t", fromA, fromB, known)
		}
		unharmed(t, a, before)
		if got := b.tap.forget(); len(got) > 0 {
			t.Errorf("carrier of b went %v", got)
		}
		s.lost.Store(false)
		s.fabric.Unpartition(a.name, d.name)
		for _, x := range []*testHost{d, c} {
			took := until(func() bool {
				a.resolve(x.ip)
				_, known := a.neighbour(x.ip)
				return known
			}, 500*time.Millisecond, time.Minute)
			t.Logf("%s is resolved after %s", x.name, took)
			limit := soon // d is asked for only now
			if x == c {
				limit = 20 * time.Second // c rests between two tries for up to 16 s
			}
			if took > limit {
				t.Errorf("%s is resolved after %s", x.name, took)
			}
			reach(t, a, x)
		}
	})
}

// While an interface cannot join the broadcast group, it has no carrier, and its status has a sentence about the reason.
// It comes up soon after the reason is gone, or after the next join.
func TestInfiniBandReasonsInTheStatus(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []struct {
		name, want string
		begin, end func(s *ibSubnet, a *testHost)
		within     time.Duration
	}{
		{
			"group missing", "flag ipoib",
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(uint32(mad.StatusInsufficientComponents)) },
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(0) }, 16 * time.Second,
		},
		{
			"group above the port", "above that of the port",
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(uint32(mad.StatusRequestInvalid)) },
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(0) }, 16 * time.Second,
		},
		{
			"denied", "refuses this port",
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(uint32(mad.StatusDenied)) },
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(0) }, 16 * time.Second,
		},
		{
			"no room", "no room for another group",
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(uint32(mad.StatusNoResources)) },
			func(s *ibSubnet, _ *testHost) { s.refuse.Store(0) }, 16 * time.Second,
		},
		{
			"P_Key absent", "add the port to the partition",
			func(_ *ibSubnet, a *testHost) { a.port.Change(pkeys(0x8001)) },
			func(_ *ibSubnet, a *testHost) { a.port.Change(pkeys(0xffff, 0x8001)) }, soon,
		},
		{
			"no subnet manager", "start one on the subnet",
			func(_ *ibSubnet, a *testHost) { a.port.Change(func(p *hca.PortAttr) { p.SMLID = 0 }) },
			func(_ *ibSubnet, a *testHost) { a.port.Change(func(p *hca.PortAttr) { p.SMLID = 1 }) }, soon,
		},
		{
			"port down", "port is not active",
			func(_ *ibSubnet, a *testHost) { a.port.Change(func(p *hca.PortAttr) { p.State = hca.PortDown }) },
			func(_ *ibSubnet, a *testHost) { a.port.Change(func(p *hca.PortAttr) { p.State = hca.PortActive }) }, soon,
		},
		{
			"no answer", "does not answer",
			func(s *ibSubnet, _ *testHost) { s.lost.Store(true) },
			func(s *ibSubnet, _ *testHost) { s.lost.Store(false) }, 20 * time.Second,
		},
		{
			"not asked", "open the queue pair to the subnet administrator",
			func(_ *ibSubnet, a *testHost) { a.inject(faults.Fault{Kind: faults.CreateQPFails, Count: math.MaxInt}) },
			func(_ *ibSubnet, a *testHost) { a.heal() }, 20 * time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSubnet(t)
				s.sa.SetPartition(hca.PKeyDefault, 2048, 0x1234, 3)
				a := s.host(1)
				c.begin(s, a)
				synctest.Wait()
				a.up()
				time.Sleep(20 * time.Second)
				st := a.status()
				t.Logf("%s (%s): %s", st.State, st.Reason, st.Detail)
				if st.Carrier || st.State != report.InterfaceWaiting || !strings.Contains(st.Detail, c.want) {
					t.Errorf("status: %s (%s) %q", st.State, st.Reason, st.Detail)
				}
				if other := seen[st.Detail]; other != "" {
					t.Errorf("the same sentence as of %s", other)
				}
				seen[st.Detail] = c.name
				if got := a.tap.forget(); slices.Contains(got, true) || slices.Contains(s.sa.Members(broadcast), 8) {
					t.Errorf("carrier went %v, members %v", got, s.sa.Members(broadcast))
				}
				c.end(s, a)
				took := until(func() bool { return a.status().State == report.InterfaceUp }, 100*time.Millisecond, time.Minute)
				t.Logf("up after %s", took)
				if st := a.status(); took > c.within || !st.Carrier || st.Detail != "" {
					t.Errorf("after %s: %s %q", took, st.State, st.Detail)
				}
			})
		})
	}
}

// A membership that the subnet administrator refuses when it is renewed ends the use of the port.
func TestInfiniBandMembershipEnds(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		s.refuse.Store(uint32(mad.StatusInsufficientComponents))
		a.port.Emit(hca.EventClientReregister)
		time.Sleep(soon)
		if st := a.status(); st.Carrier || !strings.Contains(st.Detail, "flag ipoib") {
			t.Errorf("carrier %t, %s %q", st.Carrier, st.State, st.Detail)
		}
		s.refuse.Store(0)
		time.Sleep(16 * time.Second)
		reachSoon(t, a, b)
	})
}
