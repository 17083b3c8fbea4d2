package iface

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"ipoibd/link"
)

const (
	// inspectEvery is how often ib0 is inspected even without an event: the kernel
	// does not report some changes.
	inspectEvery = time.Second
	// foreignGrace is how long another process may have a queue of ib0 before the
	// carrier is taken down. A starting daemon attaches one for about 100 us, sees
	// that ib0 is in use, and detaches.
	foreignGrace = 100 * time.Millisecond
)

// custody keeps ib0 as this daemon has set it up, whatever other processes do to it.
type custody struct {
	at          time.Time // of the next inspection
	since       time.Time // when another process was first seen with a queue; zero: none has one
	foreign     bool      // another process has had a queue for foreignGrace; the carrier is down
	wantCarrier bool      // the carrier is on unless foreign
	err         error     // of the last inspection; nil: it succeeded
}

// saw records how many foreign queues an inspection has found, plans the next
// inspection, and reports whether foreign has changed.
func (c *custody) saw(queues int, now time.Time) (changed bool) {
	c.at = now.Add(inspectEvery)
	was := c.foreign
	switch {
	case queues == 0:
		c.since, c.foreign = time.Time{}, false
	case c.since.IsZero():
		c.since, c.at = now, now.Add(foreignGrace)
	case now.Sub(c.since) < foreignGrace:
		c.at = c.since.Add(foreignGrace)
	default:
		c.foreign = true
	}
	return c.foreign != was
}

// inspect restores what other processes have changed about ib0, and takes the carrier
// down as long as one of them has a queue.
func (f *Iface) inspect(now time.Time) {
	c := &f.host.custody
	found, err := f.host.tap.Inspect()
	for _, change := range found.Restored {
		f.log.Warn("another process has changed the interface; restored", "property", string(change.What), "found", change.Found)
		if change.What == link.PropertyCarrier {
			f.carrierIs(c.wantCarrier && !c.foreign)
		}
	}
	f.inspectionEnded(err)
	if err != nil {
		c.at = now.Add(inspectEvery)
		return
	}
	if !c.saw(found.Foreign, now) {
		return
	}
	if c.foreign {
		f.log.Error("carrier down", "queues", found.Foreign, "err", f.foreignError())
	} else {
		f.log.Info("the other process has detached from the interface", "carrier", c.wantCarrier)
	}
	if err := f.setCarrier(c.wantCarrier); err != nil {
		f.log.Error("cannot change the carrier", "err", err)
	}
}

// inspectionEnded keeps the error of an inspection for the status, and logs it if it
// differs from the last one. It ignores an interface that is gone, which Run reports.
func (f *Iface) inspectionEnded(err error) {
	c := &f.host.custody
	was := c.err
	if c.err = nil; err == nil || errors.Is(err, link.ErrGone) || errors.Is(err, link.ErrClosed) {
		return
	}
	c.err = fmt.Errorf("changes by other processes may remain: %w", err)
	if was == nil || was.Error() != c.err.Error() {
		f.log.Warn("cannot inspect the interface; trying again every second", "err", c.err)
	}
}

// foreignError explains why ib0 has no carrier while another process has a queue;
// otherwise it returns nil. The kernel does not report whose queue it is, but /proc does.
func (f *Iface) foreignError() error {
	if !f.host.custody.foreign {
		return nil
	}
	// A container may have renamed ib0: the name must mean nothing to a shell, and match
	// itself as a regular expression.
	name := regexp.MustCompile(`\W`).ReplaceAllLiteralString(f.host.now.Name, ".")
	return fmt.Errorf("another process has attached to the interface and receives some of its frames: stop it "+
		"(`grep -lsx iff:.%s /proc/[0-9]*/fdinfo/*` lists it, and this daemon, process %d)", name, os.Getpid())
}

// setCarrier raises or drops the carrier. It stays off as long as another process
// has a queue.
func (f *Iface) setCarrier(on bool) error {
	c := &f.host.custody
	c.wantCarrier = on
	on = on && !c.foreign
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
