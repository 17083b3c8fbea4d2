package diagnose

import (
	"fmt"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
)

// up returns an interface that is ready at the time now.
func up(now time.Time) report.Interface {
	return report.Interface{Name: "ib0", State: "up", Reason: "none", Carrier: true, Time: now, Groups: []report.Group{{}}}
}

// Each condition of readiness is necessary, and the reason names the one that fails.
func TestUnready(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		name  string
		spoil func(*report.Interface)
		ready string // the reason why it is not
		live  bool
	}{
		{"ready", func(*report.Interface) {}, "[]", true},
		{"no carrier", func(f *report.Interface) { f.Carrier = false }, "[interface ib0 is not up: no carrier]", true},
		{"no group", func(f *report.Interface) { f.Groups = []report.Group{} }, "[interface ib0 is not up: it is not attached to the broadcast group]", true},
		{"set down", func(f *report.Interface) { f.State, f.Reason = "down", "admin_down" }, "[interface ib0 is not up: admin_down]", true},
		{"with a detail", func(f *report.Interface) { f.State, f.Reason, f.Detail = "waiting", "port", "port 1 is DOWN\nraise it" }, "[interface ib0 is not up: port 1 is DOWN; raise it]", true},
		{"stopped", func(f *report.Interface) { f.State, f.Time = "stopped", now.Add(-time.Hour) }, "[interface ib0 is not up: stopped]", true},
		{"rather old", func(f *report.Interface) { f.Time = now.Add(-silentLimit) }, "[]", true},
		{"silent", func(f *report.Interface) { f.Time = now.Add(-hungLimit) }, "[interface ib0 is not up: it has not reported for 1m0s; a system call or a verb hangs]", true},
		{"hung", func(f *report.Interface) { f.Time = now.Add(-hungLimit - time.Second) }, "[interface ib0 is not up: it has not reported for 1m1s; a system call or a verb hangs]", false},
	} {
		f := up(now)
		c.spoil(&f)
		s := report.Status{Time: now, Interfaces: []report.Interface{f}}
		if got := fmt.Sprint(NotReady(&s)); got != c.ready {
			t.Errorf("%s: unready %s, want %s", c.name, got, c.ready)
		}
		if hung := Hung(&s); (len(hung) == 0) != c.live {
			t.Errorf("%s: hung %v", c.name, hung)
		}
	}
}
