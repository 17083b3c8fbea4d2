package iface

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// waitUp waits for a virtual minute at most.
func (h *testHost) waitUp() {
	h.t.Helper()
	for range 60 {
		synctest.Wait()
		if h.status().State == report.InterfaceUp {
			return
		}
		time.Sleep(time.Second)
	}
	h.t.Fatalf("%s is not up: %+v", h.name, h.status())
}

// An interface that is up already when the daemon starts gets its carrier once,
// and it does not flicker; no event says that it is up.
func TestAdoptedUpGetsCarrierOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a := newHost(t, fabric, 1)
		a.up()
		a.stopInterface()
		carriers := a.tap.forget()
		if want := []bool{true, false}; !slices.Equal(carriers, want) {
			t.Errorf("up and stop set the carrier to %v, want %v", carriers, want)
		}
		a.iface = newIface(t, a.tap, a.dev, testConfig())
		a.iface.host.adopted = true
		a.startInterface()
		if s := a.status(); s.State != report.InterfaceUp || !s.Carrier || !s.Adopted || s.MTU != 1444 {
			t.Errorf("adopted: %+v", s)
		}
		if carriers := a.tap.forget(); !slices.Equal(carriers, []bool{true}) {
			t.Errorf("the carrier was set to %v, want it raised once", carriers)
		}
	})
}

// An interface that goes down while its queue pair is being opened does not come up for a
// moment first.
func TestDownWhileOpening(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		a.tap.SetUp(false)
		synctest.Wait()
		a.tap.forget()
		a.verbs.slow("create_qp", 300*time.Millisecond)
		a.tap.SetUp(true)
		time.Sleep(100 * time.Millisecond)
		a.tap.SetUp(false)
		time.Sleep(time.Second)
		if got := a.tap.forget(); slices.Contains(got, true) {
			t.Errorf("carrier went %v", got)
		}
		if s := a.status(); s.State != report.InterfaceDown || s.QP != nil || s.Carrier {
			t.Errorf("%s, carrier %t, %+v", s.State, s.Carrier, s.QP)
		}
		a.verbs.slow("create_qp", 0)
		a.tap.SetUp(true)
		a.waitUp()
		reach(t, a, b)
	})
}

// An attempt that fails at once is repeated after growing pauses, even if each attempt seems to
// succeed. After the operator sets ib0 down and up, it is repeated at once.
func TestFailuresDoNotSpin(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		a.tap.jam(true)
		start := a.status().QP.Generation
		a.tap.SetUp(false)
		synctest.Wait()
		a.tap.SetUp(true)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceWaiting || !strings.Contains(s.Detail, errStuck.Error()) {
			t.Errorf("stuck: %s, %q", s.State, s.Detail)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		tries := -start
		a.onRun(func(f *Iface) { tries += f.rec.ladder.NextGen() })
		t.Logf("%d tries in an hour", tries)
		if tries < 200 || tries > 240 {
			t.Errorf("%d tries in an hour, want one every 16 s", tries)
		}
		a.tap.SetUp(false)
		synctest.Wait()
		a.tap.jam(false)
		a.tap.SetUp(true)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceUp {
			t.Errorf("down and up: %s, %q", s.State, s.Detail)
		}
	})
}

// A fault long after the previous one counts as the first.
func TestBackoffForgets(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		for range 5 {
			a.onRun(func(f *Iface) { // the worker, which owns the endpoint, has nothing to do
				if err := f.fabric.att.ep.QP.Modify(hca.QPAttr{State: hca.QPErr}, hca.AttrState); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			time.Sleep(firstRetry)
			synctest.Wait()
			if s := a.status(); s.State != report.InterfaceUp {
				t.Fatalf("%s: %s", s.State, s.Detail)
			}
			time.Sleep(time.Minute)
		}
		reach(t, a, b)
	})
}

// If ib0 is deleted, or moved out of reach, Run ends and reports that once.
func TestLostInterfaceEnds(t *testing.T) {
	for _, c := range []struct {
		lose func(*tap)
		end  error
		says string
	}{
		{func(t *tap) { t.Delete() }, ErrDeleted, "ib0: another process deleted the interface"},
		{func(t *tap) { t.MoveAway() }, ErrMoved, "ib0: the interface was moved"},
	} {
		twoHosts(t, func(t *testing.T, a, _ *testHost) {
			a.end = c.end
			c.lose(a.tap)
			synctest.Wait()
			if s := a.status(); s.State != report.InterfaceFailed || !strings.Contains(s.Detail, c.says) {
				t.Errorf("%s: %q, want %q", s.State, s.Detail, c.says)
			}
		})
	}
}

// After a stop the state reports no fault.
func TestStatusAfterStop(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		a.stopInterface()
		if s := a.status(); s.State != report.InterfaceStopped || s.Detail != "" || s.Peers == nil {
			t.Errorf("%+v", s)
		}
	})
}

// Stopping works in every state, at every moment, and leaves nothing behind: a leaked goroutine
// would end the bubble with a panic.
func TestStopAtAnyMoment(t *testing.T) {
	for name, prepare := range map[string]func(*testHost){
		"never up":       func(*testHost) {},
		"up":             (*testHost).up,
		"device gone":    func(h *testHost) { h.up(); h.unplug(); synctest.Wait() },
		"just unplugged": func(h *testHost) { h.up(); h.unplug() },
		"port down":      func(h *testHost) { h.up(); h.underlay().SetUp(false); synctest.Wait() },
		"just up":        func(h *testHost) { h.tap.SetUp(true) },
		"just down":      func(h *testHost) { h.up(); h.tap.SetUp(false) },
		"backing off":    func(h *testHost) { h.tap.jam(true); h.up() },
		"resolving":      func(h *testHost) { h.up(); h.resolve(netip.MustParseAddr("10.0.0.9")) },
		"deleted":        func(h *testHost) { h.up(); h.end = ErrDeleted; h.tap.Delete(); synctest.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fabric := newFabric(t, 1)
				h := newHost(t, fabric, 1)
				prepare(h)
				started := time.Now()
				h.stop()
				if took := time.Since(started); took > time.Second {
					t.Errorf("took %s", took)
				}
				if st, err := h.tap.State(); err == nil && st.Carrier {
					t.Error("the carrier is on")
				}
			})
		})
	}
}

// Whatever happens to the host and the underlay, in any order, the final state depends only on the
// final settings.
func TestAnyOrderOfEvents(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			fabric := newFabric(t, seed)
			a, b := newHost(t, fabric, 1), newHost(t, fabric, 2)
			a.up()
			b.up()
			for range 200 {
				disturb(rnd, a)
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				}
			}
			a.plug()
			a.tap.SetUp(true)
			time.Sleep(2 * time.Second)
			a.underlay().SetUp(true)
			a.underlay().SetMTU(1500)
			a.tap.Fake.SetMTU(1444)
			a.waitUp()
			for b.takeIP() != nil { // frames that were kept for it
			}
			a.resolve(b.ip)
			reach(t, a, b)
			if peers := b.status().Peers; len(peers) != 1 || peers[0].QPN != a.status().QP.QPN {
				t.Errorf("seed %d: stale peers %+v", seed, peers)
			}
		})
	}
}

// disturb does one thing to a host.
func disturb(rnd *rand.Rand, h *testHost) {
	mtus := []int{300, 620, 1400, 1500, 9000}
	mac := ipoib.MAC{2, 9, 9, 9, 9, 9}
	switch rnd.IntN(9) {
	case 0:
		h.unplug()
	case 1:
		h.plug()
	case 2:
		h.underlay().SetUp(rnd.IntN(2) == 0)
	case 3, 4:
		h.tap.SetUp(rnd.IntN(3) > 0)
	case 5:
		h.underlay().SetMTU(mtus[rnd.IntN(len(mtus))])
	case 6:
		h.tap.Fake.SetMTU(1000 + rnd.IntN(1000))
	case 7:
		h.sendIP(mac, h.ip.Next(), 20+rnd.IntN(1400), 1)
	case 8:
		synctest.Wait()
	}
}

// The GID in use stays when another address comes and goes. When its own address goes, the next
// GID is used.
func TestAddressesOfUnderlay(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		qpn := a.status().QP.QPN
		other := netip.MustParseAddr("192.0.2.101")
		a.underlay().AddAddr(other)
		synctest.Wait()
		if s := a.status(); s.QP.QPN != qpn {
			t.Error("another address cost the queue pair")
		}
		a.underlay().DelAddr(a.under)
		synctest.Wait()
		s := a.status()
		if s.State != report.InterfaceUp || s.QP.GID != hca.GIDFromAddr(other) {
			t.Fatalf("address gone: %+v", s.QP)
		}
		reach(t, a, b)
		qpn = s.QP.QPN
		a.underlay().AddAddr(a.under)
		synctest.Wait()
		if s := a.status(); s.QP.QPN != qpn {
			t.Error("the return of the first address cost the queue pair")
		}
		a.underlay().DelAddr(other)
		a.underlay().DelAddr(a.under)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceWaiting || !strings.Contains(s.Detail, "no usable GID") {
			t.Errorf("no address: %s, %q", s.State, s.Detail)
		}
	})
}

// A session that ends between the view and its use is not a failure: it causes no pause once the
// device is back.
func TestAttachToEndedSession(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		var old *device.Session
		a.onRun(func(f *Iface) { old = f.fabric.att.session })
		a.unplug()
		synctest.Wait()
		a.onRun(func(f *Iface) {
			if err := f.rec.come(target{session: old}, 0, 0); !errors.Is(err, hca.ErrClosed) {
				t.Errorf("come: %v", err)
			}
		})
		a.plug()
		a.waitUp()
	})
}
