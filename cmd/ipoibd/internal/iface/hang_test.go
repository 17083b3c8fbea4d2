package iface

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// A verb that hangs does not stall Run, no matter what caused it: Run answers at once, and
// the freeze detector gets its samples.
func TestR08HangingVerbDoesNotStallRun(t *testing.T) {
	goUp := func(h *testHost) { h.tap.SetUp(true) }
	goDown := func(h *testHost) { h.tap.SetUp(false) }
	for _, c := range []struct {
		name, verb string
		before     func(*testHost) // nil: nothing
		call       func(*testHost)
	}{
		{"ib0 goes up", "create_qp", goDown, goUp},
		{"ib0 goes down", "destroy_qp", nil, goDown},
		{"a rung runs", "modify_qp", nil, func(h *testHost) { h.order(qprecovery.RungResetQP) }},
		{"the port changes", "destroy_qp", nil, func(h *testHost) { h.light(false) }},
		{"the device is suspended", "dealloc_pd", nil, (*testHost).suspend},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				if c.before != nil {
					c.before(a)
					synctest.Wait()
				}
				a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: c.verb})
				c.call(a)
				synctest.Wait()
				var longest, overdue time.Duration // answers; samples of the freeze detector
				for range 30 {
					asked := time.Now()
					answered := make(chan struct{})
					a.iface.queries <- func() {
						if f := a.iface; f.fab.att != nil {
							overdue = max(overdue, time.Since(f.path.lanes[0].deadline(time.Now())))
						}
						close(answered)
					}
					<-answered
					longest = max(longest, time.Since(asked))
					time.Sleep(10 * time.Millisecond)
				}
				if longest > 0 || overdue > 0 {
					t.Errorf("Run answered within %v, a sample was overdue by %v", longest, overdue)
				}
				a.faults.Release()
			})
		})
	}
}
