package diagnose

import (
	"cmp"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
)

const (
	// silentLimit is twice the longest interval at which a working interface publishes its state.
	silentLimit = 10 * time.Second
	// hungLimit is when only a restart may help. It exceeds the delay of every system call that
	// returns at all, and the stall of a host that swaps.
	hungLimit = time.Minute
)

// Unready is the error of an interface that carries no traffic, or lacks an address or a route.
type Unready struct {
	Interface string
	Up        bool
	Why       string
}

func (u Unready) Error() string {
	if u.Up {
		return fmt.Sprintf("interface %s is up, but lacks a configured address or route: %s", u.Interface, u.Why)
	}
	return fmt.Sprintf("interface %s is not up: %s", u.Interface, u.Why)
}

// NotReady returns the interfaces that are not ready: /readyz, `ipoibd status --check` and the
// metric ipoibd_interface_ready report them. An interface is ready if it has a carrier, is
// attached to the broadcast group, has the addresses and routes of the configuration, and has
// reported recently.
func NotReady(s *report.Status) (list []Unready) {
	for i := range s.Interfaces {
		if u, is := notReady(s, &s.Interfaces[i]); is {
			list = append(list, u)
		}
	}
	return list
}

// notReady returns whether an interface is not ready, and why.
func notReady(s *report.Status, f *report.Interface) (u Unready, is bool) {
	why := Stale(s, f)
	switch {
	case why != "":
	case f.State != report.InterfaceUp:
		why = cmp.Or(f.Because(), f.State)
	case !f.Carrier:
		why = cmp.Or(f.Because(), "no carrier")
	case len(f.Groups) == 0:
		why = "it is not attached to the broadcast group"
	}
	up := why == ""
	return Unready{f.Name, up, cmp.Or(why, report.OneLine(f.Unassigned))}, !up || f.Unassigned != ""
}

// Hung returns the interfaces that have not reported for so long that only a restart of the
// daemon may help: /livez reports them.
func Hung(s *report.Status) (list []Unready) {
	for i := range s.Interfaces {
		if f := &s.Interfaces[i]; silence(s, f) > hungLimit {
			list = append(list, Unready{Interface: f.Name, Why: Stale(s, f)})
		}
	}
	return list
}

// Stale describes a snapshot that is too old for a working interface, or returns "".
func Stale(s *report.Status, f *report.Interface) string {
	if age := silence(s, f); age > silentLimit {
		return fmt.Sprintf("it has not reported for %s; a system call or a verb hangs", age.Round(time.Second))
	}
	return ""
}

// silence returns the age of a snapshot. One of an interface that has ended does not age.
func silence(s *report.Status, f *report.Interface) time.Duration {
	if f.State == report.InterfaceFailed || f.State == report.InterfaceStopped {
		return 0
	}
	return s.Time.Sub(f.Time)
}
