package iface

import (
	"slices"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
)

// Recovery works on an InfiniBand port as on Ethernet.
func TestInfiniBandFaultsAreHealed(t *testing.T) {
	for _, h := range healings {
		t.Run(h.name, func(t *testing.T) {
			h.test(t, func(t *testing.T, test func(t *testing.T, a, b *testHost)) {
				onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
					test(t, a, b)
					if n := hears(t, b, a); n != 1 {
						t.Errorf("%d multicast packets arrived", n)
					}
					if got := s.sa.Members(broadcast); !slices.Equal(got, []uint16{8, 16}) {
						t.Errorf("members of the broadcast group: LIDs %v", got)
					}
				})
			})
		})
	}
}

// A device that is opened again joins the groups again, and asks for the paths again.
func TestInfiniBandDeviceReturns(t *testing.T) {
	for name, fail := range map[string]func(a *testHost){
		"reset":      (*testHost).deviceReset,
		"fatal":      func(a *testHost) { a.inject(faults.Fault{Kind: faults.DeviceFatal}) },
		"replugged":  func(a *testHost) { a.unplug(); time.Sleep(time.Second); a.plug() },
		"suspended":  func(a *testHost) { a.suspend(); time.Sleep(time.Second); a.resume() },
		"SA's hangs": func(a *testHost) { a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "poll_cq"}); a.deviceReset() },
	} {
		t.Run(name, func(t *testing.T) {
			onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
				reach(t, a, b)
				time.Sleep(5 * time.Second)
				opens := a.dev.Opens()
				fail(a)
				took := until(func() bool { return a.dev.Opens() > opens }, 10*time.Millisecond, time.Minute)
				reachSoon(t, a, b)
				t.Logf("open after %s", took)
				if n := hears(t, b, a); n != 1 {
					t.Errorf("%d multicast packets arrived", n)
				}
				if got := s.sa.Members(broadcast); !slices.Equal(got, []uint16{8, 16}) {
					t.Errorf("members of the broadcast group: LIDs %v", got)
				}
				st := a.status()
				checkAccounts(t, st)
				// The wait for the join is part of the recovery.
				if h := st.Recovery.History; len(h) != 1 || h[0].Stopped || h[0].End.IsZero() {
					t.Errorf("recoveries %+v", h)
				}
			})
		})
	}
}

// A recovery waits for the answer about the broadcast group, but not for a subnet administrator that is gone.
func TestInfiniBandDeviceReturnsToASilentSubnet(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		s.lost.Store(true)
		a.deviceReset()
		time.Sleep(time.Second)
		if st := a.status(); st.Recovery.State != "detached" {
			t.Errorf("recovery %+v before the subnet administrator can have answered", st.Recovery)
		}
		time.Sleep(10 * time.Second)
		if st := a.status(); st.State != report.InterfaceWaiting || !st.Recovery.History[0].Stopped {
			t.Errorf("state %s, recoveries %+v", st.State, st.Recovery.History)
		}
		s.lost.Store(false)
		t.Logf("up %s after the subnet administrator", until(func() bool { return a.status().State == report.InterfaceUp }, 10*time.Millisecond, 20*time.Second))
		reachSoon(t, a, b)
	})
}
