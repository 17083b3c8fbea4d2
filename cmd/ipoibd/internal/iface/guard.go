package iface

import (
	"fmt"
	"os"
	"time"

	"ipoibd/link"
)

const (
	// inspectEvery is how often ib0 is inspected without an event: the kernel sends
	// none for some changes.
	inspectEvery = time.Second
	// foreignGrace is how long another process may have a queue of ib0 before the
	// carrier is taken down. A daemon that starts attaches one for some 100 us, sees
	// that ib0 is held, and detaches.
	foreignGrace = 100 * time.Millisecond
)

// guard keeps ib0 as this daemon has set it up, whatever other processes do to it.
type guard struct {
	at      time.Time // of the next inspection
	since   time.Time // another process has had a queue; zero: none has
	foreign bool      // for so long that the carrier is down
	lit     bool      // the carrier is to be on otherwise
}

// saw takes the number of foreign queues that an inspection has found, plans the
// next one, and reports whether foreign has changed.
func (g *guard) saw(queues int, now time.Time) (changed bool) {
	g.at = now.Add(inspectEvery)
	was := g.foreign
	switch {
	case queues == 0:
		g.since, g.foreign = time.Time{}, false
	case g.since.IsZero():
		g.since, g.at = now, now.Add(foreignGrace)
	case now.Sub(g.since) < foreignGrace:
		g.at = g.since.Add(foreignGrace)
	default:
		g.foreign = true
	}
	return g.foreign != was
}

// inspect has the TAP restore what other processes have changed, and takes the
// carrier down as long as one of them has a queue.
func (f *Iface) inspect(now time.Time) {
	g := &f.host.guard
	found, err := f.host.tap.Inspect()
	if err != nil {
		g.at = now.Add(inspectEvery)
		f.log.Debug("cannot inspect the interface", "err", err)
		return
	}
	for _, c := range found.Restored {
		f.log.Warn("another process has changed the interface; restored", "what", string(c.What), "found", c.Found)
		if c.What == link.PropertyCarrier {
			f.carrierIs(g.lit && !g.foreign)
		}
	}
	if !g.saw(found.Foreign, now) {
		return
	}
	if g.foreign {
		f.log.Error("carrier down", "queues", found.Foreign, "err", f.foreignError())
	} else {
		f.log.Info("the other process has detached from the interface", "carrier", g.lit)
	}
	if err := f.setCarrier(g.lit); err != nil {
		f.log.Error("cannot change the carrier", "err", err)
	}
}

// foreignError says why ib0 has no carrier, nil where the reason is not a foreign
// queue. The kernel does not tell whose queue that is; /proc does.
func (f *Iface) foreignError() error {
	if !f.host.guard.foreign {
		return nil
	}
	return fmt.Errorf("another process has attached to the interface and takes a part of its frames: end it "+
		"(`grep -lsx iff:.%s /proc/[0-9]*/fdinfo/*` names it and this one, process %d)", f.host.now.Name, os.Getpid())
}

// setCarrier raises or drops the carrier. It stays off as long as another process
// has a queue.
func (f *Iface) setCarrier(on bool) error {
	g := &f.host.guard
	g.lit = on
	on = on && !g.foreign
	err := f.host.tap.SetCarrier(on)
	if err == nil {
		f.carrierIs(on)
	}
	return err
}

// carrierIs notes a carrier that was just set, before netlink reports it.
func (f *Iface) carrierIs(on bool) {
	f.host.now.Carrier = on && f.host.now.Up
	f.nbrs.asks.follow(on, time.Now())
}
