package iface

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// Two devices in one process, with two interfaces each, do not affect each other, and objects of one
// never reach the other.
func TestR28DevicesAreApart(t *testing.T) {
	for name, c := range map[string]func(h *testHost){
		"reset": (*testHost).deviceReset,
		"fatal": func(h *testHost) { h.inject(faults.Fault{Kind: faults.DeviceFatal}) },
		"hang": func(h *testHost) {
			h.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "create_cq"}, faults.Fault{Kind: faults.CQError})
		},
		"replug":  func(h *testHost) { h.unplug(); synctest.Wait(); h.plug() },
		"suspend": func(h *testHost) { h.suspend(); synctest.Wait(); h.resume() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fabric := newFabric(t, 1)
				one, two := newHost(t, fabric, 1), newHost(t, fabric, 2)
				hosts := []*testHost{one, two, one.sibling(3, hca.PKeyDefault), two.sibling(4, hca.PKeyDefault)}
				for _, h := range hosts {
					h.up()
				}
				reachAll(t, hosts...)
				before := []report.Interface{two.status(), hosts[3].status()}
				two.tap.forget()
				c(one)
				for range 30 {
					time.Sleep(100 * time.Millisecond)
					reach(t, two, hosts[3])
				}
				for i, h := range []*testHost{two, hosts[3]} {
					s := h.status()
					if s.QP.QPN != before[i].QP.QPN || len(s.Recovery.History) > 0 {
						t.Errorf("%s: %+v, was %+v; %+v", h.name, s.QP, before[i].QP, s.Recovery)
					}
				}
				if got := two.tap.forget(); len(got) > 0 || two.dev.Opens() != 1 || one.dev.Opens() != 2 {
					t.Errorf("carrier went %v, opened %d and %d times", got, one.dev.Opens(), two.dev.Opens())
				}
				drainInbox(hosts...)
				reachAll(t, hosts...)
			})
		})
	}
}
