package iface

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// healing is a fault and its expected consequences.
type healing struct {
	name   string
	faults []faults.Fault
	rungs  []string // the steps of the recovery
	reason string   // of the first; one of them, behind each other
	sameQP bool     // the queue pair keeps its number
	within time.Duration
}

// anyError: with a queue pair in ERR, a flush may be seen before the request that failed, because
// each of the two queues has its own CQ.
const anyError = "request_error flush_without_cause"

var healings = []healing{
	{"R02/send_error_sqe", kinds(faults.SendErrorSQE), []string{"resume_qp"}, "request_error", true, 20 * time.Millisecond},
	{"R04/send_flush_sqe", kinds(faults.SendFlushSQE), []string{"resume_qp"}, "flush_without_cause", true, 20 * time.Millisecond},
	{"R02/send_error_err", kinds(faults.SendErrorErr), []string{"reset_qp"}, anyError, true, 20 * time.Millisecond},
	{"R04/send_flush_err", kinds(faults.SendFlushErr), []string{"reset_qp"}, "flush_without_cause", true, 20 * time.Millisecond},
	{"R02/recv_error_err", kinds(faults.RecvErrorErr), []string{"reset_qp"}, anyError, true, 20 * time.Millisecond},
	{"R04/recv_flush_err", kinds(faults.RecvFlushErr), []string{"reset_qp"}, "flush_without_cause", true, 20 * time.Millisecond},
	{"R06/reset_fails", kinds(faults.SendErrorErr, faults.ResetFails), []string{"reset_qp", "recreate_qp"}, anyError, false, 20 * time.Millisecond},
	{"R06/create_qp_fails", kinds(faults.SendErrorErr, faults.ResetFails, faults.CreateQPFails), []string{"reset_qp", "recreate_qp", "rebuild_cq"}, anyError, false, 20 * time.Millisecond},
	{"R01/cq_overrun", kinds(faults.CQOverrun), []string{"rebuild_cq"}, "cq_error", false, 20 * time.Millisecond},
	{"R01/cq_error", kinds(faults.CQError), []string{"rebuild_cq"}, "cq_error", false, 20 * time.Millisecond},
	{"R08/completions_stop", kinds(faults.CompletionsStop), []string{"rebuild_cq"}, "freeze_suspected", false, time.Second},
	{"R08/deaf_receive", kinds(faults.DeafReceive), []string{"rebuild_cq"}, "freeze_suspected", false, time.Second},
	{"R08/verb_hangs", []faults.Fault{{Kind: faults.VerbHangs, Verb: "modify_qp"}, {Kind: faults.SendErrorErr}}, []string{"reset_qp", "reset_device"}, anyError, false, 2 * time.Second},
	{"R08/swallowed_send", kinds(faults.SwallowedSend), nil, "", true, time.Second}, // the next completion of the queue says that it ended
}

func kinds(ks ...faults.Kind) (out []faults.Fault) {
	for _, k := range ks {
		out = append(out, faults.Fault{Kind: k})
	}
	return out
}

// Each fault leads to its rung, with its reason, within its time. ib0 keeps its carrier, every frame
// is accounted for, and the peers reach each other. Verbs that never block make no difference.
func TestFaultsAreHealed(t *testing.T) {
	for _, h := range healings {
		t.Run(h.name, func(t *testing.T) { h.test(t, twoHosts) })
		if !slices.ContainsFunc(h.faults, func(f faults.Fault) bool { return f.Kind == faults.VerbHangs }) {
			t.Run(h.name+"_prompt", func(t *testing.T) { h.test(t, promptHosts) })
		}
	}
}

func (h *healing) test(t *testing.T, hosts func(*testing.T, func(t *testing.T, a, b *testHost))) {
	hosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(time.Second) // snapshots are at least 10 ms apart
		before := a.status()
		a.tap.forget()
		a.inject(h.faults...)
		pingPong(t, a, b)
		time.Sleep(h.within)
		synctest.Wait()
		h.check(t, before, a.status())
		long := h.within > time.Second // longer than the carrier bound
		if got := a.tap.forget(); len(got) > 0 != long {
			t.Errorf("carrier went %v", got)
		}
		drainInbox(a, b)
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}

func (h *healing) check(t *testing.T, before, s report.Interface) {
	t.Helper()
	if s.State != report.InterfaceUp || (s.QP.QPN == before.QP.QPN) != h.sameQP {
		t.Errorf("state %s, QPN %s, was %s", s.State, s.QP.QPN, before.QP.QPN)
	}
	var steps []string
	for _, r := range s.Recovery.History {
		t.Logf("%s by %s: %v, outage %v", r.Rung, r.Reason, time.Duration(r.Duration), time.Duration(r.Outage))
		if !strings.Contains(h.reason, r.Reason) {
			t.Errorf("reason %s, want %s", r.Reason, h.reason)
		}
		for _, s := range r.Steps {
			steps = append(steps, s.Rung)
		}
	}
	if !slices.Equal(steps, h.rungs) {
		t.Errorf("steps %v, want %v", steps, h.rungs)
	}
}

// pingPong makes both sides send, so that every kind of fault has an opportunity.
func pingPong(t *testing.T, a, b *testHost) {
	t.Helper()
	for i := range byte(5) {
		for _, way := range [][2]*testHost{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			mac, ok := from.neighbour(to.ip)
			if !ok {
				t.Fatalf("%s does not know %s", from.name, to.name)
			}
			from.sendIP(mac, to.ip, 100, i)
			synctest.Wait()
			for to.takeIP() != nil {
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// drainInbox discards packets that arrived late.
func drainInbox(hosts ...*testHost) {
	for _, h := range hosts {
		for h.takeIP() != nil {
		}
	}
}

// checkAccounts fails unless every frame of an interface ends in exactly one counter.
func checkAccounts(t *testing.T, s report.Interface) {
	t.Helper()
	sum := func(prefixes ...string) uint64 { return count(s, prefixes...) }
	for _, e := range []struct {
		what    string
		in, out uint64
	}{
		{"tx", sum("tx_read", "tx_injected"), sum("tx_sent", "tx_slow_path", "tx_drop_", "tx_wc_", "tx_outstanding", "tx_queued")},
		{"rx", sum("rx_received"), sum("rx_delivered", "rx_slow_path", "rx_probe", "rx_own_multicast", "rx_drop_")},
		{"sends", sum("tx_posts"), sum("tx_completions", "tx_taken_back", "tx_outstanding")},
		{"receives", sum("rx_posts"), sum("rx_completions", "rx_taken_back", "rx_outstanding")},
	} {
		if e.in != e.out {
			t.Errorf("%s: %d in, %d accounted for: %v", e.what, e.in, e.out, s.Counters)
		}
	}
	if got, want := sum("rx_outstanding"), uint64(testConfig().RecvWRs*max(1, s.Lanes)); got != want {
		t.Errorf("%d receives are posted, want all %d", got, want)
	}
}

// Work requests that fail again and again lead to the CQ rung, with growing pauses, and never to a
// reset of the device.
func TestR06EndlessRequestErrorsEndAtTheCQRung(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		opens := a.dev.Opens()
		a.inject(faults.Fault{Kind: faults.SendErrorErr, Count: 1 << 30})
		mac, _ := a.neighbour(b.ip)
		for range 600 {
			a.sendIP(mac, b.ip, 100, 1)
			time.Sleep(time.Second)
		}
		s := a.status()
		t.Logf("after 10 minutes: %+v, %+v", s.Recovery.Rungs, s.Recovery.Reasons)
		if s.Recovery.Rungs["rebuild_cq"] == 0 || s.Recovery.Rungs["reset_device"] != 0 || a.dev.Opens() != opens {
			t.Errorf("rungs %v, %d opens, were %d", s.Recovery.Rungs, a.dev.Opens(), opens)
		}
		if n := s.Recovery.Rungs["rebuild_cq"]; n > 100 {
			t.Errorf("%d rebuilds in 10 minutes: no back-off", n)
		}
		a.heal()
		time.Sleep(2 * time.Minute)
		drainInbox(b)
		if s := a.status(); s.State != report.InterfaceUp || s.Recovery.State != "healthy" {
			t.Errorf("the fault is gone: %s, %+v", s.State, s.Recovery)
		}
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}

// The operator's commands run their rung at once.
func TestR25OperatorsOrders(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		for _, o := range []struct {
			rung qprecovery.Rung
			same bool
		}{{qprecovery.RungResetQP, true}, {qprecovery.RungRebuildCQ, false}} {
			before := a.status().QP.QPN
			if err := a.iface.Reset(t.Context(), o.rung); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			s := a.status()
			if last := s.Recovery.History[len(s.Recovery.History)-1]; last.Rung != o.rung.String() || last.Reason != "operator" {
				t.Errorf("%v: %+v", o.rung, last)
			}
			if s.State != report.InterfaceUp || (s.QP.QPN == before) != o.same {
				t.Errorf("%v: %s, QPN %s, was %s", o.rung, s.State, s.QP.QPN, before)
			}
			reach(t, a, b)
		}
		refused := func(why string) {
			t.Helper()
			time.Sleep(time.Second)
			if err := a.iface.Reset(t.Context(), qprecovery.RungResetQP); !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), why) {
				t.Errorf("%v, want %q", err, why)
			}
		}
		a.suspend()
		refused("the interface has no queue pair: device is suspended; 'ipoibd resume' opens it again")
		a.resume()
		a.waitUp()
		a.unplug()
		refused("the interface has no queue pair: device soft ")
		a.plug()
		a.waitUp()
		a.tap.SetUp(false)
		refused("interface is down; bring it up: ip link set ib0 up")
	})
}

// A container may give ib0 any name. The command that the status suggests means only that name to a shell.
func TestSuggestedCommandIsQuoted(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		down, err := a.tap.State()
		if err != nil {
			t.Fatal(err)
		}
		down.Name, down.Up = "$(id);`x`", false
		a.onRun(func(f *Iface) {
			f.hostChanged(down)
			f.rec.reconcile()
			f.show(time.Now()) // at once, because the next inspection finds the TAP up
			if s := f.Status(); s.Detail != "interface is down; bring it up: ip link set '$(id);`x`' up" {
				t.Error(s.Detail)
			}
		})
	})
}

// If a device that is back refuses to create a queue pair, the attempt is repeated after pauses, as
// when ib0 is set up. The device is not reset because of that.
func TestR07RefusedQueuePairResetsNoDevice(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.unplug()
		time.Sleep(time.Second)
		a.refuse(true)
		a.plug()
		time.Sleep(time.Minute)
		synctest.Wait()
		s, opens := a.status(), a.dev.Opens()
		if s.State != report.InterfaceWaiting || opens != 2 || s.Recovery.Rungs["reset_device"] != 1 {
			t.Errorf("%s after %d opens, rungs %v", s.State, opens, s.Recovery.Rungs)
		}
		a.refuse(false)
		time.Sleep(lastRetry)
		synctest.Wait()
		reach(t, a, b)
		if n := a.dev.Opens(); n != opens {
			t.Errorf("%d opens, were %d", n, opens)
		}
	})
}
