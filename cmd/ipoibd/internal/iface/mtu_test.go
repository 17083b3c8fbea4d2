package iface

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/link"
	"ipoibd/ud/port"
)

// The steps of a test: what happens to the interface, and the MTU that follows.
type mtuStep struct {
	host    int // the operator sets this MTU; 0: nothing
	largest int // that the port allows
	want    int
}

func TestMTUState(t *testing.T) {
	for _, c := range []struct {
		name       string
		found      int
		configured int
		adopted    bool
		steps      []mtuStep
	}{
		{"new follows the port", 1500, 0, false, []mtuStep{{0, 1444, 1444}, {0, 4092, 4092}, {0, 1144, 1144}, {0, 4092, 4092}}},
		{"configured", 1500, 1280, false, []mtuStep{{0, 1444, 1280}, {0, 1144, 1144}, {0, 4092, 1280}}},
		{"configured too large", 1500, 2044, false, []mtuStep{{0, 1444, 1444}, {0, 4092, 2044}}},
		{"the operator's outlives a cut", 1500, 0, false, []mtuStep{{0, 4092, 4092}, {2000, 4092, 2000}, {0, 1444, 1444}, {0, 4092, 2000}}},
		{"the operator's replaces the configured", 1500, 1280, false, []mtuStep{{0, 1444, 1280}, {1400, 1444, 1400}, {0, 4092, 1400}}},
		{"the largest follows the port", 1500, 0, false, []mtuStep{{0, 1444, 1444}, {1300, 1444, 1300}, {1444, 1444, 1444}, {0, 4092, 4092}}},
		{"too much is the largest", 1500, 0, false, []mtuStep{{0, 1444, 1444}, {9000, 1444, 1444}, {0, 4092, 4092}}},
		{"lowered to what a cut made of it", 1500, 0, false, []mtuStep{{0, 4092, 4092}, {0, 1444, 1444}, {1400, 1444, 1400}, {0, 4092, 1400}}},
		{"adopted at the largest", 1444, 0, true, []mtuStep{{0, 1444, 1444}, {0, 4092, 4092}}},
		{"adopted above the largest", 4092, 0, true, []mtuStep{{0, 1444, 1444}, {0, 4092, 4092}}},
		{"adopted below the largest", 1300, 0, true, []mtuStep{{0, 1444, 1300}, {0, 4092, 1300}}},
		{"adopted, another configured", 1444, 1280, true, []mtuStep{{0, 1444, 1280}}},
		{"set while there is no port", 1500, 0, false, []mtuStep{{1500, 4092, 4092}, {1400, 4092, 1400}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s MTUState
			s.found(c.found, c.configured, c.adopted)
			for i, step := range c.steps {
				if step.host != 0 {
					s.changed(step.host)
				}
				if got, _ := s.fit(step.largest); got != step.want {
					t.Fatalf("step %d, %+v: got %d", i, step, got)
				}
				s.Set = step.want
			}
		})
	}
}

// A request that does not fit is reported once, and again after it was changed or has fitted.
// The MTU of an interface that is adopted is no new request.
func TestMTUTooLarge(t *testing.T) {
	for _, c := range []struct {
		name                string
		configured, adopted int
		steps               []mtuStep // want is the request that is reported
	}{
		{"configured", 1444, 0, []mtuStep{{0, 944, 1444}, {0, 944, 0}, {0, 900, 0}, {0, 1444, 0}, {0, 944, 1444}}},
		{"configured and adopted", 1444, 944, []mtuStep{{0, 944, 1444}, {0, 944, 0}}},
		{"set", 0, 0, []mtuStep{{0, 1444, 0}, {4000, 1444, 4000}, {0, 1444, 0}, {4000, 1444, 4000}}},
		{"set to the largest", 0, 0, []mtuStep{{1444, 1444, 0}, {0, 944, 0}}},
		{"adopted", 0, 4092, []mtuStep{{0, 1444, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s MTUState
			s.found(cmp.Or(c.adopted, 1500), c.configured, c.adopted != 0)
			for i, step := range c.steps {
				if step.host != 0 {
					s.changed(step.host)
				}
				mtu, got := s.fit(step.largest)
				if got != step.want {
					t.Errorf("step %d, %+v: reported %d", i, step, got)
				}
				s.Set = mtu
			}
		})
	}
}

// The narrowest path determines the MTU. The log and the status name it, and say what is lost.
func TestMTUOfThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		h.stopInterface()
		cfg := testConfig()
		cfg.MTU = 1400
		h.iface = newIface(t, h.tap, h.dev, cfg)
		host := &h.iface.host
		var log bytes.Buffer
		host.log = slog.New(slog.NewTextHandler(&log, nil))
		st, err := h.tap.State()
		if err != nil {
			t.Fatal(err)
		}
		host.now = st
		host.mtu.found(st.MTU, cfg.MTU, false)
		path := func(mtu, carries, use int) port.Plan {
			return port.Plan{MaxPayload: 1448, Path: hca.PathLimit{To: netip.MustParseAddr("192.0.2.9"), MTU: mtu, Carries: carries, MaxPayload: use}}
		}
		wide := port.Plan{MaxPayload: 1448}
		const lower, below, exceeds = "requested MTU is too large for the path to a peer; using a smaller one", "MTU below 1280", "carries less than the interface's MTU"
		for _, c := range []struct {
			name    string
			plan    port.Plan
			mtu     int
			limited bool
			logged  []string // of the three messages
			notice  string
		}{
			{"wide", wide, 1400, false, nil, ""},
			{"narrow, but not for the request", path(1490, 1436, 1436), 1400, false, nil, ""},
			{"narrow", path(1400, 1348, 1348), 1344, true, []string{lower}, ""},
			{"the same again", path(1400, 1348, 1348), 1344, true, nil, ""},
			{"narrow by a router's report, below IPv6", path(1300, 1248, 1284), 1280, true, []string{exceeds}, "set the MTU of the interface to 1244"},
			{"narrow by configuration, below IPv6", path(1300, 1248, 1248), 1244, true, []string{below}, "cannot have IPv6"},
			{"wide again", wide, 1400, false, nil, ""},
			{"narrow again", path(1400, 1348, 1348), 1344, true, []string{lower}, ""},
		} {
			log.Reset()
			host.fitMTU(c.plan)
			for host.worker.busy > 0 {
				host.worker.took((<-host.worker.jobs)())
			}
			r := host.mtuReport
			if host.now.MTU != c.mtu || r.path.To.IsValid() != c.limited || c.limited && r.path != c.plan.Path {
				t.Errorf("%s: MTU %d, limited by %+v, want %d, %t", c.name, host.now.MTU, r.path, c.mtu, c.limited)
			}
			link := r.link()
			if n := link.Notices().Text(); !strings.Contains(n, c.notice) || (n == "") != (c.notice == "") {
				t.Errorf("%s: notice %q, want %q", c.name, n, c.notice)
			}
			for _, m := range []string{lower, below, exceeds} {
				if strings.Count(log.String(), "level=WARN") != len(c.logged) || strings.Contains(log.String(), m) != strings.Contains(strings.Join(c.logged, "\n"), m) {
					t.Errorf("%s: want the warnings %q:\n%s", c.name, c.logged, &log)
				}
			}
			if c.limited && host.now.MTU != st.MTU && len(c.logged) > 0 && !strings.Contains(log.String(), "peer=192.0.2.9") {
				t.Errorf("%s: the peer is not named:\n%s", c.name, &log)
			}
		}
		h.startInterface()
	})
}

// The port has a smaller MTU some time before the daemon knows of it. Packets that were as long
// as the MTU then fail, and the first failure stops them: it costs one recovery, not one for each
// packet and at last the queue pair. Shorter packets pass.
func TestPortIsNarrowerThanKnown(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		qpn := a.status().QP.QPN
		mac, _ := a.neighbour(b.ip)
		a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "query_port"})
		a.underlay().SetMTU(1400)
		for range 20 {
			a.sendIP(mac, b.ip, 1444, 1)
			a.sendIP(mac, b.ip, 1300, 2)
			time.Sleep(2 * time.Millisecond)
		}
		synctest.Wait()
		arrived := 0
		for p := b.takeIP(); p != nil; p = b.takeIP() {
			arrived++
		}
		s := a.status()
		if n := len(s.Recovery.History); n != 1 || s.QP.QPN != qpn {
			t.Errorf("%d recoveries, QP %s, was %s", n, s.QP.QPN, qpn)
		}
		if arrived < 18 {
			t.Errorf("%d of 20 short packets arrived", arrived)
		}
		a.release()
		time.Sleep(5 * time.Second)
		if s := a.status(); s.MTU != 1344 {
			t.Errorf("MTU %d, want 1344", s.MTU)
		}
	})
}

// A port stays narrower than known, because query_port waits for the kernel's lock of all interfaces. Longer
// packets are tried again later and later, so short ones pass, and the recoveries do not escalate.
func TestPortStaysNarrowerThanKnown(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		mac, _ := a.neighbour(b.ip)
		a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "query_port"})
		a.underlay().SetMTU(1400)
		const rounds = 4000
		arrived, dark := 0, 0
		for range rounds { // 20 s
			a.sendIP(mac, b.ip, 1444, 1)
			a.sendIP(mac, b.ip, 1300, 2)
			time.Sleep(5 * time.Millisecond)
			for p := b.takeIP(); p != nil; p = b.takeIP() {
				arrived++
			}
			if !a.status().Carrier {
				dark++
			}
		}
		if s := a.status(); s.Recovery.Rungs["rebuild_cq"] > 0 || dark > 0 {
			t.Errorf("rungs %v; no carrier in %d of %d rounds", s.Recovery.Rungs, dark, rounds)
		}
		if arrived < rounds*99/100 {
			t.Errorf("%d of %d short packets arrived", arrived, rounds)
		}
		a.release()
		time.Sleep(5 * time.Second)
		if s := a.status(); s.MTU != 1344 {
			t.Errorf("MTU %d, want 1344", s.MTU)
		}
	})
}

// Packets of several lengths that are too long for the port wait in it. The longest that fails does not
// raise the limit which a shorter one has set.
func TestPortRefusesSeveralLengths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		h.onRun(func(f *Iface) {
			f.host.refused(1390)
			f.host.refused(1440)
			if f.host.narrow.to != 1389 {
				t.Errorf("packets of up to %d bytes pass, want 1389", f.host.narrow.to)
			}
			f.host.refused(1380)
			if f.host.narrow.to != 1379 {
				t.Errorf("packets of up to %d bytes pass, want 1379", f.host.narrow.to)
			}
		})
		time.Sleep(2 * narrowFirst)
		h.onRun(func(f *Iface) {
			f.host.refused(1440)
			if f.host.narrow.to != 1439 {
				t.Errorf("later packets of up to %d bytes pass, want 1439", f.host.narrow.to)
			}
		})
	})
}

// unsteadyTAP is a TAP whose inspections fail some times.
type unsteadyTAP struct {
	*tap
	fails atomic.Int32
}

func (u *unsteadyTAP) Inspect() (link.Findings, error) {
	if u.fails.Add(-1) >= 0 {
		return link.Findings{}, errors.New("interrupted dump")
	}
	return u.tap.Inspect()
}

// The operator's MTU is not lost if ib0 cannot be examined just after the kernel has reported it.
func TestOperatorsMTUAfterAFailedInspection(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		u := &unsteadyTAP{tap: a.tap}
		a.onRun(func(f *Iface) { f.host.tap = u })
		for _, mtu := range []struct{ set, want int }{{4000, 1444}, {1300, 1300}} {
			u.fails.Store(2)
			a.tap.Fake.SetMTU(mtu.set)
			time.Sleep(10 * time.Second)
			st, err := a.tap.State()
			if err != nil || st.MTU != mtu.want || a.status().MTU != mtu.want {
				t.Errorf("set %d: ib0 has the MTU %d, the status shows %d, want %d; %v", mtu.set, st.MTU, a.status().MTU, mtu.want, err)
			}
		}
	})
}
