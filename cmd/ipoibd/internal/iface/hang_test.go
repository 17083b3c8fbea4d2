package iface

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/faults"
)

// A verb that hangs does not stall Run, whoever caused the verb: Run still answers at
// once, and the status is there within its own limit.
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
		{"status", "query_qp", nil, func(h *testHost) { h.background(func() { h.status() }) }},
		{"the port changes", "destroy_qp", nil, func(h *testHost) { h.light(false) }},
		{"device removed", "dealloc_pd", nil, (*testHost).suspend},
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
				var longest time.Duration
				for range 30 {
					asked := time.Now()
					answered := make(chan struct{})
					a.iface.queries <- func() { close(answered) }
					<-answered
					longest = max(longest, time.Since(asked))
					time.Sleep(10 * time.Millisecond)
				}
				asked := time.Now()
				a.status()
				t.Logf("Run answered within %v, the status came after %v", longest, time.Since(asked))
				if longest > 0 || time.Since(asked) > 100*time.Millisecond {
					t.Errorf("Run answered within %v, the status came after %v", longest, time.Since(asked))
				}
				a.faults.Release()
			})
		})
	}
}

// background runs f beside the test.
func (h *testHost) background(f func()) { go f() }
