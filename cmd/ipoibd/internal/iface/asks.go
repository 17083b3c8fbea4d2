package iface

import (
	"time"

	"ipoibd/neigh"
)

// askTimes are when those are asked for whom the host waits for, counted from
// when its carrier was raised: at once, and soon again, since the kernel takes a
// moment to act on that and loses what it asks with until then, and since a
// switch may let frames through later than we do. Within a second the kernel asks
// again by itself.
var askTimes = [...]time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, 600 * time.Millisecond}

// asks says when the host's neighbours are asked for in its name. The kernel
// forgot them when the carrier went down, and what it asked with since was lost.
// Its next try may be a second away, and with it the end of the outage; a TCP
// that sends into it waits for much longer.
type asks struct {
	start time.Time
	at    time.Time // when to ask; zero: never
	round int       // the next one
}

// follow begins when the carrier is raised, and ends when it is taken down.
func (a *asks) follow(carrier bool, now time.Time) {
	*a = asks{}
	if carrier {
		a.start, a.at = now, now.Add(askTimes[0])
	}
}

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

// askForHost has the table ask for whom the host waits for, when that is due.
func (f *Iface) askForHost(now time.Time) {
	if !f.nbrs.asks.due(now) {
		return
	}
	targets, err := f.host.tap.Unresolved()
	if err != nil {
		f.log.Warn("cannot read whom the host waits for", "err", err)
	}
	if len(targets) > 0 {
		f.step(neigh.HostAsks{Targets: targets})
	}
}
