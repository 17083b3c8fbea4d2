package iface

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
)

// The status is read without Run's goroutine and without the device: it is there at once,
// also while both hang, and says how old it is.
func TestStatusWaitsForNoOne(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.inject(faults.Fault{Kind: faults.VerbHangs})
		hang, hangs := make(chan struct{}), make(chan struct{})
		a.iface.queries <- func() { close(hangs); <-hang }
		<-hangs
		start := time.Now()
		time.Sleep(time.Minute)
		before := time.Now()
		s := a.iface.Status()
		if took := time.Since(before); took != 0 || s.State != report.InterfaceUp || s.Time.After(start) || s.Counters["tx_posts"].Value == 0 {
			t.Errorf("after %v: %+v", took, s)
		}
		if err := answers(a.iface, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the interface hangs, and answers with %v", err)
		}
		close(hang)
		synctest.Wait()
		if err := answers(a.iface, time.Second); err != nil {
			t.Errorf("only the device hangs, and the interface answers with %v", err)
		}
		a.tap.SetUp(false)
		synctest.Wait()
		if s := a.iface.Status(); s.State != report.InterfaceDown || s.Reason != report.ReasonAdminDown || !s.Since.Equal(time.Now()) {
			t.Errorf("%s because of %s since %v, want %v", s.State, s.Reason, s.Since, time.Now())
		}
	})
}

func answers(f *Iface, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return f.Answers(ctx)
}

// A change of the state is published at once, other changes publishEvery later at most, and
// an interface at rest is published every publishRest.
func TestStatusIsFresh(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		for range 10 {
			time.Sleep(700 * time.Millisecond)
			synctest.Wait()
			if age := time.Since(a.iface.Status().Time); age > publishRest {
				t.Errorf("at rest the status is %v old", age)
			}
		}
		before := a.iface.Status().Counters["neigh_from_host"].Value
		reach(t, a, b)
		a.tap.SetUp(false)
		synctest.Wait()
		if s := a.iface.Status(); s.State != report.InterfaceDown || s.Carrier || !s.Time.Equal(time.Now()) {
			t.Errorf("%s, carrier %t, published %v ago", s.State, s.Carrier, time.Since(s.Time))
		}
		a.tap.SetUp(true)
		time.Sleep(publishEvery)
		synctest.Wait()
		s := a.iface.Status()
		if got := s.Counters["neigh_from_host"].Value; s.State != report.InterfaceUp || s.Reason != report.ReasonNone || got == before {
			t.Errorf("%s because of %s, %d frames through the slow path, were %d", s.State, s.Reason, got, before)
		}
	})
}
