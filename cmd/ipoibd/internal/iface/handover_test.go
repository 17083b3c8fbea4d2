package iface

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/kernel/capsule/capsuletest"
	"ipoibd/link/linktest"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
)

// continued returns an interface that continues from a state.
func continued(t *testing.T, tap *tap, dev *device.Device, s State) *Iface {
	t.Helper()
	f, err := construct(testConfig(), tap, s, Env{Device: dev, Journal: journal.New(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A parked interface has nothing in flight, its state accounts for every frame, and it sends and receives
// nothing. After Resume it continues with the same queue pair.
func TestPark(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		mac, _ := a.neighbour(b.ip)
		before := a.status()
		a.underlay().SetWritable(false)
		for i := range byte(20) {
			a.sendIP(mac, b.ip, 100, i)
		}
		synctest.Wait()
		p, err := a.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Export(capsule.NewWriter())
		if err != nil {
			t.Fatal(err)
		}
		if s.QPN != before.QP.QPN || len(s.Peers) != 1 || s.MTU.Set != before.MTU {
			t.Errorf("state %+v", s)
		}
		total := func(prefixes ...string) (n uint64) {
			for name, c := range s.Before.Counters {
				for _, p := range prefixes {
					if strings.HasPrefix(name, p) {
						n += c.Value
					}
				}
				if c.Kind == hca.CountGauge {
					t.Errorf("%s is a gauge", name)
				}
			}
			return n
		}
		if in, out := total("tx_read", "tx_injected"), total("tx_sent", "tx_slow_path", "tx_drop_", "tx_wc_"); in != out || total("tx_read") < 20 {
			t.Errorf("%d frames to send, %d accounted for", in, out)
		}
		if in, out := total("tx_posts", "rx_posts"), total("tx_completions", "tx_taken_back", "rx_completions", "rx_taken_back"); in != out {
			t.Errorf("%d requests, %d have ended", in, out)
		}
		a.underlay().SetWritable(true)
		read := a.iface.Status().Counters["tx_read"]
		a.sendIP(mac, b.ip, 100, 1)
		time.Sleep(time.Second)
		if now := a.iface.Status().Counters["tx_read"]; now != read {
			t.Errorf("a parked interface has read a frame")
		}
		p.Resume()
		time.Sleep(100 * time.Millisecond)
		if f := b.takeIP(); f == nil {
			t.Error("the frame that waited was lost")
		}
		reach(t, a, b)
		if now := a.status(); now.QP.QPN != s.QPN || now.State != report.InterfaceUp {
			t.Errorf("after Resume: %+v", now)
		}
		checkAccounts(t, a.status())
	})
}

// An interface cannot be parked while it recovers. Asking stops nothing.
func TestParkIsRefusedDuringRecovery(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.verbs.slow("modify_qp", 100*time.Millisecond)
		if err := a.iface.Reset(t.Context(), qprecovery.RungResetQP); err != nil {
			t.Fatal(err)
		}
		if err := a.iface.CanPark(t.Context()); !errors.Is(err, ErrUnsettled) {
			t.Errorf("asked during a recovery: %v", err)
		}
		if _, err := a.iface.Park(t.Context()); !errors.Is(err, ErrUnsettled) {
			t.Errorf("parked during a recovery: %v", err)
		}
		a.waitUp()
		if err := a.iface.CanPark(t.Context()); err != nil {
			t.Errorf("asked after it: %v", err)
		}
		reach(t, a, b)
		p, err := a.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.Resume()
		reach(t, a, b)
	})
}

// An interface whose device is suspended, lost or given up is parked and handed over as it is (R26): its
// recovery goes on in the other process, and is not among those that have ended.
func TestR26WaitingInterfaceIsParked(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		if err := a.dev.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p, err := a.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Export(capsule.NewWriter())
		if err != nil || s.QPN != 0 || s.Ladder.State != qprecovery.Detached || !s.Ladder.NoCarrier || s.Ladder.Record == nil || len(s.Before.Recovery.History) != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		next := continued(t, bareHost(t, a.fabric, 3).tap, a.dev, s)
		if r := next.Status().Recovery; r.State != "detached" || len(r.History) != 1 || !r.Since.Equal(s.Ladder.Record.Start) {
			t.Errorf("before it runs, the interface that continues shows %+v", r)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		p.Resume()
		if err := a.dev.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.waitUp()
		reach(t, a, b)
	})
}

// An interface that another process continues ends without an effect on ib0: what is due meanwhile, such as queries for
// members of groups, is the other process's to do.
func TestLeave(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		p, err := a.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Export(capsule.NewWriter())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		written := a.tap.Counters().Written
		p.Leave()
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceStopped || s.QP != nil {
			t.Errorf("state %s, queue pair %+v", s.State, s.QP)
		}
		if st, err := a.tap.State(); err != nil || !st.Carrier || !a.tap.given {
			t.Errorf("ib0: %+v, %v, given up: %v", st, err, a.tap.given)
		}
		if n := a.tap.Counters().Written; n != written || n != s.Before.TAP["tap_written"].Value {
			t.Errorf("%d frames written to ib0, %d of them before it left, %d in its state", n, written, s.Before.TAP["tap_written"].Value)
		}
		if _, err := a.iface.Park(t.Context()); err == nil {
			t.Error("an interface that has ended was parked")
		}
	})
}

// The next process knows which offloads the TAP has, so it does not wait for the kernel's lock of all interfaces to set
// them again.
func TestOffloadsAreHandedOver(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		p, err := a.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Export(capsule.NewWriter())
		if err != nil || !s.Offloads.Set || s.Offloads.Got == 0 {
			t.Fatalf("%+v, %v", s.Offloads, err)
		}
		want := s.Offloads
		for _, known := range []bool{true, false} {
			if !known { // as in the state of a version that does not know of offloads
				s.Offloads = Offloads{}
			}
			device, set := &tap{Fake: linktest.NewFake("ib0")}, false
			next := continued(t, device, a.dev, s)
			if got, err := next.fabric.onTAP.use(&noting{device, &set}, want.Wanted); err != nil || got != want.Got || set == known {
				t.Errorf("offloads known: %t; got %v, %v, set again: %t", known, got, err, set)
			}
			if err := next.Close(); err != nil {
				t.Error(err)
			}
		}
		p.Resume()
	})
}

// noting notes that offloads are set.
type noting struct {
	*tap
	set *bool
}

func (n *noting) SetOffloads(want link.Offloads) (link.Offloads, error) {
	*n.set = true
	return n.tap.SetOffloads(want)
}

// A flood of peers that were only heard does not delay a hand-over: all that are in use are handed over,
// and some of the others.
func TestHandedPeersAreBounded(t *testing.T) {
	var all []neigh.PeerInfo
	for i := range 4 * maxHeardHanded {
		all = append(all, neigh.PeerInfo{QPN: hca.QPN(i + 2), Used: i%2 == 1})
	}
	handed := handedPeers(all)
	used := 0
	for _, p := range handed {
		if p.Used {
			used++
		}
	}
	if used != 2*maxHeardHanded || len(handed) != 3*maxHeardHanded {
		t.Errorf("%d peers, %d of them used; want %d and %d", len(handed), used, 3*maxHeardHanded, 2*maxHeardHanded)
	}
}

// The format of what is handed over outlives versions.
func TestFormat(t *testing.T) { capsuletest.Check(t, "interface", State{}) }
