package iface

import (
	"time"

	"ipoibd/neigh"
)

// askTimes are when those are asked for whom the host waits for, counted from
// when the kernel lets its frames through again: at once, and as long as there
// is no answer soon again, as a switch may let frames through later than we do.
// The kernel itself asks again within a second.
var askTimes = [...]time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond}

// asks says when the host's neighbours are asked for in its name. The kernel
// forgot them when the carrier went down, and what it asked with since was lost.
// Its next try may be a second away, and with it the end of the outage; a TCP
// that sends into it waits for much longer.
type asks struct {
	start time.Time
	at    time.Time // when to ask; zero: never
	round int       // the next one
}

func (a *asks) begin(now time.Time) { *a = asks{start: now, at: now.Add(askTimes[0])} }

// due reports whether it is time to ask, and counts that as done.
func (a *asks) due(now time.Time) bool {
	if a.at.IsZero() || now.Before(a.at) {
		return false
	}
	a.at = time.Time{}
	if a.round++; a.round < len(askTimes) {
		a.at = a.start.Add(askTimes[a.round])
	}
	return true
}

// askForHost has the table ask for whom the host waits for, when that is due. No
// more is due once it waits for nobody.
func (f *Iface) askForHost(now time.Time) {
	if !f.nbrs.asks.due(now) {
		return
	}
	targets, err := f.host.tap.Unresolved()
	if err != nil {
		f.log.Warn("cannot read whom the host waits for", "err", err)
	}
	if len(targets) == 0 {
		f.nbrs.asks.at = time.Time{}
		return
	}
	f.step(neigh.HostAsks{Targets: targets})
}
