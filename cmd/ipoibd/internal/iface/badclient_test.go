package iface

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// An interface that keeps its session delays the reset of the device by two seconds or by
// the grace period. Its sibling waits no longer than that, and both work afterwards.
func TestR14SlowAndDeadInterfaces(t *testing.T) {
	for name, c := range map[string]struct {
		how   Misbehaviour
		after time.Duration
	}{"slow": {Slow, slowRelease}, "dead": {Dead, qprecovery.DefaultGrace}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fabric := newFabric(t, 1)
				a := newHost(t, fabric, 1)
				b := a.sibling(2, hca.PKeyDefault)
				a.up()
				b.up()
				reachAll(t, a, b)
				for i := range uint64(2) {
					a.iface.Misbehave(c.how)
					a.inject(faults.Fault{Kind: faults.DeviceFatal})
					time.Sleep(c.after - time.Second)
					for _, h := range []*testHost{a, b} {
						if s := h.status(); s.QP != nil || s.Carrier {
							t.Errorf("%s: carrier %v, %+v", h.name, s.Carrier, s.QP)
						}
					}
					time.Sleep(1500 * time.Millisecond)
					synctest.Wait()
					if n := a.dev.Opens(); n != i+2 {
						t.Errorf("opened %d times", n)
					}
					reachAll(t, a, b)
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// When the wait for a device has ended, ib0 has no carrier but Run still answers. ib0 may go
// down and up in the meantime.
func TestR23GivenUpAndRecovered(t *testing.T) {
	for name, flap := range map[string]bool{"left alone": false, "ib0 flaps": true} {
		t.Run(name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				a.unplug()
				time.Sleep(qprecovery.DefaultGiveUpAfter + time.Minute)
				s := a.status()
				if s.State != report.InterfaceWaiting || s.Carrier || s.Detail == "" || s.Recovery.State != "given_up" {
					t.Errorf("%s, carrier %v, %s: %s", s.State, s.Carrier, s.Recovery.State, s.Detail)
				}
				if flap {
					a.tap.SetUp(false)
					synctest.Wait()
					a.tap.SetUp(true)
				}
				a.plug()
				time.Sleep(time.Minute)
				if s := a.status(); s.State != report.InterfaceWaiting || s.Carrier {
					t.Errorf("%s, carrier %v", s.State, s.Carrier)
				}
				if err := a.dev.Recover(t.Context()); err != nil {
					t.Fatal(err)
				}
				a.waitUp()
				reach(t, a, b)
			})
		})
	}
}
