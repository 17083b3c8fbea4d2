package iface

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
)

// newAssigning returns a host whose configuration assigns an address and a route.
func newAssigning(t *testing.T, up bool) *testHost {
	t.Helper()
	h := newHost(t, newFabric(t, 1), 1)
	h.stopInterface()
	cfg := testConfig()
	cfg.Addresses, cfg.Routes, cfg.Up = []string{"10.9.0.1/24"}, []string{"10.0.0.0/8 via 10.9.0.254"}, up
	h.iface = newIface(t, h.tap, h.dev, cfg)
	return h
}

var assignedHere = link.Assignment{
	Addrs:  []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")},
	Routes: []link.Route{{To: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("10.9.0.254")}},
}

// take returns the calls of Assign since the last take. Each must have had all that is configured.
func (h *testHost) takeAssigned() (up []bool) {
	h.t.Helper()
	h.tap.mu.Lock()
	defer h.tap.mu.Unlock()
	for _, a := range h.tap.assigned {
		up = append(up, a.up)
		if !reflect.DeepEqual(a.Assignment, assignedHere) {
			h.t.Errorf("assigned %+v, want %+v", a.Assignment, assignedHere)
		}
	}
	h.tap.assigned = nil
	return up
}

// With "up" the interface comes up at the start, with its addresses and routes; an operator who
// sets it down keeps it down.
func TestUpAndAssignedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAssigning(t, true)
		h.startInterface()
		h.waitUp()
		up := h.takeAssigned()
		if len(up) < 2 || up[0] || !up[len(up)-1] {
			t.Errorf("assigned while up: %v, want first while down, and again once up", up)
		}
		h.tap.SetUp(false)
		synctest.Wait()
		if s := h.status(); s.State == report.InterfaceUp {
			t.Errorf("state %+v, want it to stay down", s)
		}
	})
}

// What the kernel removes when the interface goes down, or below an MTU of 1280, is assigned again.
func TestAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAssigning(t, false)
		h.startInterface()
		synctest.Wait()
		if up := h.takeAssigned(); len(up) != 1 || up[0] {
			t.Errorf("assigned while up: %v, want once, while down", up)
		}
		for range 2 {
			h.tap.SetUp(true)
			h.waitUp()
			if up := h.takeAssigned(); len(up) == 0 || !up[len(up)-1] {
				t.Errorf("assigned while up: %v, want it again once up", up)
			}
			h.tap.SetUp(false)
			synctest.Wait()
			h.takeAssigned()
		}
		h.tap.Fake.SetMTU(1000)
		synctest.Wait()
		h.takeAssigned()
		h.tap.Fake.SetMTU(1280)
		synctest.Wait()
		if up := h.takeAssigned(); len(up) == 0 {
			t.Error("not assigned again after the MTU has risen to 1280")
		}
	})
}

// A refusal is in the status until an attempt succeeds, and does not end the interface.
func TestRefusedAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAssigning(t, true)
		h.tap.refusal = errors.New("address 10.9.0.1/24: refused")
		var log bytes.Buffer
		h.iface.host.log = slog.New(slog.NewTextHandler(&log, nil))
		h.startInterface()
		h.waitUp()
		if n := strings.Count(log.String(), "level=WARN msg=\"cannot configure"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, log.String())
		}
		if s := h.status(); !strings.Contains(s.Detail, "10.9.0.1/24: refused") {
			t.Errorf("error %q, want the refusal", s.Detail)
		}
		if s := h.status(); !strings.Contains(s.Unassigned, "10.9.0.1/24: refused") {
			t.Errorf("unassigned %q, want the refusal", s.Unassigned)
		}
		h.tap.mu.Lock()
		h.tap.refusal = nil
		h.tap.mu.Unlock()
		time.Sleep(2 * lastRetry)
		synctest.Wait()
		if s := h.status(); s.Detail != "" || s.Unassigned != "" {
			t.Errorf("error %q, %q, want none, since the reason has gone", s.Detail, s.Unassigned)
		}
		h.takeAssigned()
		time.Sleep(2 * lastRetry)
		synctest.Wait()
		if up := h.takeAssigned(); len(up) > 0 {
			t.Errorf("assigned %d times after a success, want it left alone", len(up))
		}
		if n := strings.Count(log.String(), "level=WARN msg=\"cannot configure"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, log.String())
		}
	})
}

// If the interface cannot be set up, that is tried again until it is up, after growing pauses. From
// then on an operator may set it down.
func TestUpIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAssigning(t, true)
		h.tap.grounded = errors.New("set ib0 up: refused")
		var log bytes.Buffer
		h.iface.log = slog.New(slog.NewTextHandler(&log, nil))
		h.iface.host.log = h.iface.log
		h.startInterface()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := h.tap.raised; n < 5 || n > 12 {
			t.Errorf("tried %d times in 2 minutes, want it after pauses that grow to %v", n, lastRetry)
		}
		if s := h.status(); s.State != report.InterfaceDown || !strings.Contains(s.Detail, "set ib0 up: refused") {
			t.Errorf("%+v, want it down, and why", s)
		}
		if strings.Contains(log.String(), "ip link set") || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("want one warning, and no advice to do what the daemon does:\n%s", log.String())
		}
		h.tap.mu.Lock()
		h.tap.grounded = nil
		h.tap.mu.Unlock()
		h.waitUp()
		h.tap.SetUp(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if s := h.status(); s.State != report.InterfaceDown || !strings.Contains(s.Detail, "ip link set ib0 up") {
			t.Errorf("%+v, want it to stay down", s)
		}
	})
}

// Without addresses and routes nothing is asked of the kernel, except once for an adopted
// interface, which may have those of an earlier configuration.
func TestNothingAssigned(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t, newFabric(t, 1), 1)
			h.stopInterface()
			h.iface = newIface(t, h.tap, h.dev, testConfig())
			h.iface.host.adopted = adopted
			h.tap.assigned = nil
			h.startInterface()
			h.up()
			want := 0
			if adopted {
				want = 1
			}
			h.tap.mu.Lock()
			defer h.tap.mu.Unlock()
			if len(h.tap.assigned) != want {
				t.Errorf("adopted: %v: assigned %d times, want %d", adopted, len(h.tap.assigned), want)
			}
		})
	}
}

// Assigning is due in the first state, whatever it is.
func TestAssignedInAnyFirstState(t *testing.T) {
	for _, st := range []link.State{{}, {Up: true}, {MTU: 1500}, {Up: true, Carrier: true, MTU: 4092}} {
		a := assignment{want: assignedHere}
		if !a.due(st, true, false) || a.due(st, false, false) {
			t.Errorf("%+v: want it due once", st)
		}
	}
}

// lateTAP sets the MTU slowly, or reports states late, as the kernel's watcher does between its readings.
type lateTAP struct {
	*tap
	late atomic.Bool
}

func (l *lateTAP) SetMTU(mtu int) error {
	err := l.tap.SetMTU(mtu)
	if !l.late.Load() {
		time.Sleep(time.Millisecond)
	}
	return err
}

func (l *lateTAP) Watch(ctx context.Context) (<-chan link.State, error) {
	in, err := l.tap.Watch(ctx)
	out := make(chan link.State, 1)
	go func() {
		defer close(out)
		for s := range in {
			if l.late.Load() {
				select {
				case <-time.After(40 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			select {
			case <-out:
			default:
			}
			out <- s
		}
	}()
	return out, err
}

// The underlay becomes so narrow that the kernel removes the IPv6 addresses of ib0, which the kernel reports
// before the daemon has noted its own change, and wide again, which it reports afterwards.
func TestAssignedAgainInAnyOrderOfReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAssigning(t, false)
		l := &lateTAP{tap: h.tap}
		f, err := onTAP(h.iface.cfg, l, Env{Device: h.dev, Journal: journal.New(), Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		h.iface = f
		h.startInterface()
		h.tap.SetUp(true)
		h.waitUp()
		time.Sleep(time.Minute)
		h.underlay().SetMTU(1200)
		time.Sleep(time.Second)
		h.takeAssigned()
		l.late.Store(true)
		h.underlay().SetMTU(1500)
		time.Sleep(time.Minute)
		if len(h.takeAssigned()) == 0 {
			t.Errorf("the MTU is %d again, and nothing was assigned again", h.status().MTU)
		}
	})
}
