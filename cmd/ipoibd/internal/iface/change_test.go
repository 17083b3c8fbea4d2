package iface

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
)

// lastAssigned returns what Assign was called with last.
func (h *testHost) lastAssigned() link.Assignment {
	h.tap.mu.Lock()
	defer h.tap.mu.Unlock()
	if n := len(h.tap.assigned); n > 0 {
		return h.tap.assigned[n-1].Assignment
	}
	return link.Assignment{}
}

// A change takes effect before Change returns, and costs neither the carrier nor the queue pair.
func TestChangeIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		h.up()
		before := h.status()
		h.tap.forget()
		cfg := h.iface.cfg
		largest := before.MTU
		for _, mtu := range []int{1300, 1280, 9000, 0} {
			cfg.MTU = mtu
			if err := h.iface.Change(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			want := mtu
			if mtu == 0 || mtu > largest {
				want = largest
			}
			if st, err := h.tap.State(); err != nil || st.MTU != want {
				t.Errorf("MTU %d: it is %d, %v; want %d", mtu, st.MTU, err, want)
			}
		}
		cfg.Addresses, cfg.Routes = []string{"10.9.0.1/24"}, []string{"10.0.0.0/8 via 10.9.0.254"}
		if err := h.iface.Change(t.Context(), cfg); err != nil || !reflect.DeepEqual(h.lastAssigned(), assignedHere) {
			t.Errorf("assigned %+v, %v", h.lastAssigned(), err)
		}
		cfg.Addresses, cfg.Routes = nil, nil
		if err := h.iface.Change(t.Context(), cfg); err != nil || !reflect.DeepEqual(h.lastAssigned(), link.Assignment{}) {
			t.Errorf("assigned %+v, %v", h.lastAssigned(), err)
		}
		synctest.Wait()
		if after := h.status(); after.State != report.InterfaceUp || !reflect.DeepEqual(after.QP, before.QP) {
			t.Errorf("%s, queue pair %+v, was %+v", after.State, after.QP, before.QP)
		}
		if c := h.tap.forget(); len(c) > 0 {
			t.Errorf("the carrier changed: %v", c)
		}
	})
}

// A new "up" sets the interface up. One that was there before leaves it as the operator has set it.
func TestChangeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		cfg := h.iface.cfg
		change := func(up bool) {
			t.Helper()
			cfg.Up = up
			if err := h.iface.Change(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}
		change(true)
		h.waitUp()
		h.tap.SetUp(false)
		synctest.Wait()
		change(true)
		synctest.Wait()
		if s := h.status(); s.State != report.InterfaceDown {
			t.Errorf("%s, want it down", s.State)
		}
		change(false)
		change(true)
		h.waitUp()
		change(false)
		synctest.Wait()
		if s := h.status(); s.State != report.InterfaceUp {
			t.Errorf("%s, want it up", s.State)
		}
	})
}

// Change reports what the host refuses. A removal that failed is tried again after a pause,
// although nothing is configured any more.
func TestChangeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		h.up()
		refuse := func(err error) {
			h.tap.mu.Lock()
			defer h.tap.mu.Unlock()
			h.tap.refusal, h.tap.assigned = err, nil
		}
		why := errors.New("refused")
		refuse(why)
		if err := h.iface.Change(t.Context(), h.iface.cfg); !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		refuse(nil)
		time.Sleep(2 * firstRetry)
		synctest.Wait()
		if n := len(h.tap.assigned); n == 0 {
			t.Error("not tried again")
		}
	})
}

// Change is bounded by its context while netlink hangs, and by the end of Run.
func TestChangeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, newFabric(t, 1), 1)
		h.up()
		release := h.tap.hold()
		time.Sleep(2 * inspectEvery)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.iface.Change(ctx, h.iface.cfg); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while netlink hangs: %v", err)
		}
		release()
		h.stopInterface()
		if err := h.iface.Change(t.Context(), h.iface.cfg); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}
