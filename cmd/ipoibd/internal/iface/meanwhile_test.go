package iface

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// operations of recovery, each of which takes some hundred milliseconds in
// TestR06WhateverHappensMeanwhile.
var operations = []struct {
	name  string
	start func(t *testing.T, a, b *testHost)
}{
	{"R02/resume", func(t *testing.T, a, b *testHost) {
		a.inject(faults.Fault{Kind: faults.SendErrorSQE})
		mac, _ := a.neighbour(b.ip)
		a.sendIP(mac, b.ip, 100, 1)
	}},
	{"R02/reset", func(t *testing.T, a, b *testHost) { a.order(qprecovery.RungResetQP) }},
	{"R02/recreate", func(t *testing.T, a, b *testHost) {
		a.inject(faults.Fault{Kind: faults.ResetFails})
		a.order(qprecovery.RungResetQP)
	}},
	{"R01/rebuild", func(t *testing.T, a, b *testHost) { a.order(qprecovery.RungRebuildCQ) }},
	{"R06/verb hangs", func(t *testing.T, a, b *testHost) {
		a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "create_cq"})
		a.order(qprecovery.RungRebuildCQ)
	}},
	{"R25/device reset", func(t *testing.T, a, b *testHost) { a.deviceReset() }},
	{"R25/device fatal", func(t *testing.T, a, b *testHost) { a.inject(faults.Fault{Kind: faults.DeviceFatal}) }},
	{"R21/replug", func(t *testing.T, a, b *testHost) { a.unplug(); synctest.Wait(); a.plug() }},
	{"R26/suspend, resume", func(t *testing.T, a, b *testHost) {
		a.suspend()
		time.Sleep(200 * time.Millisecond)
		a.resume()
	}},
}

// happenings are events during an operation. until undoes one; nil: it needs nothing. off
// says that ib0 has neither carrier nor queue pair until then.
var happenings = []struct {
	name  string
	start func(a *testHost)
	until func(a *testHost)
	off   bool
}{
	{"ib0 down", func(a *testHost) { a.tap.SetUp(false) }, func(a *testHost) { a.tap.SetUp(true) }, true},
	{"ib0 flaps", func(a *testHost) { a.tap.SetUp(false); synctest.Wait(); a.tap.SetUp(true) }, nil, false},
	{"port down", func(a *testHost) { a.light(false) }, func(a *testHost) { a.light(true) }, true},
	{"port flaps", func(a *testHost) { a.light(false); synctest.Wait(); a.light(true) }, nil, false},
	{"device gone", (*testHost).unplug, (*testHost).plug, true},
	{"device replugged", func(a *testHost) { a.unplug(); synctest.Wait(); a.plug() }, nil, false},
	{"fatal event", func(a *testHost) {
		a.mu.Lock()
		defer a.mu.Unlock()
		_ = a.faults.Inject(faults.Fault{Kind: faults.DeviceFatal})
	}, nil, false},
	{"device reset", (*testHost).deviceReset, nil, false},
	{"suspended", (*testHost).suspend, (*testHost).resume, true},
	{"suspended for a moment", func(a *testHost) { a.suspend(); synctest.Wait(); a.resume() }, nil, false},
	{"CQ reset", func(a *testHost) { a.order(qprecovery.RungRebuildCQ) }, nil, false},
	{"daemon stops", func(a *testHost) { a.stopInterface() }, func(a *testHost) {
		a.iface = newIface(a.t, a.tap, a.dev, testConfig())
		a.startInterface()
	}, false},
}

// light sets the netdev up or down, whatever HCA is on it.
func (h *testHost) light(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dark = !on
	h.ports[0].SetUp(on)
}

func (h *testHost) order(r qprecovery.Rung) { _ = h.iface.Reset(h.t.Context(), r) } // there may be nothing to reset

func (h *testHost) deviceReset() { _ = h.dev.Reset(h.t.Context()) } // it may be suspended

func (h *testHost) suspend() { go func() { _ = h.dev.Suspend(context.Background()) }() }

func (h *testHost) resume() {
	if err := h.dev.Resume(h.t.Context()); err != nil {
		h.t.Error(err)
	}
}

// Whatever happens during an operation of recovery, at any time: ib0 is off where it must be,
// and works again afterwards; every lost frame is counted.
func TestR06WhateverHappensMeanwhile(t *testing.T) {
	for _, op := range operations {
		for _, h := range happenings {
			for _, after := range []time.Duration{0, 150, 600} {
				t.Run(fmt.Sprintf("%s/%s after %d ms", op.name, h.name, after), func(t *testing.T) {
					t.Parallel()
					slowHosts(t, func(t *testing.T, a, b *testHost) {
						a.t = t
						reach(t, a, b)
						time.Sleep(time.Second)
						for _, verb := range []string{"alloc_pd", "create_cq", "create_qp", "modify_qp", "query_qp", "destroy_qp"} {
							a.verbs.slow(verb, 60*time.Millisecond)
						}
						op.start(t, a, b)
						time.Sleep(after * time.Millisecond)
						h.start(a)
						time.Sleep(12 * time.Second) // the device's retries are 10 s apart
						if s := a.status(); h.off && (s.Carrier || s.QP != nil) {
							t.Errorf("carrier %v, QP %+v: %s, %s", s.Carrier, s.QP, s.State, s.Recovery.State)
						}
						if h.until != nil {
							h.until(a)
						}
						time.Sleep(12 * time.Second)
						if s := a.status(); s.State != report.InterfaceUp || !s.Carrier || s.Recovery.State != "healthy" {
							t.Fatalf("%s, carrier %v, %s, device %v: %s", s.State, s.Carrier, s.Recovery.State, a.dev.Status().State, s.Detail)
						}
						drainInbox(a, b)
						a.resolve(b.ip)
						reach(t, a, b)
						checkAccounts(t, a.status())
					})
				})
			}
		}
	}
}
