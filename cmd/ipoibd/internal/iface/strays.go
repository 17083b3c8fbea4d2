package iface

import (
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
)

// strayInterval is how often the device is asked for stray datagrams. Their
// sender loses what it sends until it is answered.
const strayInterval = 50 * time.Millisecond

// strays follow the stray datagrams of the device in use.
type strays struct {
	device hca.StrayReporter // in use last; nil: it sees none
	seen   uint64            // of its count
	at     time.Time         // when to ask it next; zero: never
}

// follow begins with a device that is in use now. The strays from before count as
// well: they came after the device was opened, to a queue pair from before.
func (s *strays) follow(dev hca.Device, now time.Time) {
	reporter, ok := dev.(hca.StrayReporter)
	if reporter != s.device {
		*s = strays{device: reporter}
	}
	if ok {
		s.at = now
	}
}

// stop ends it; the same device may be followed again.
func (s *strays) stop() { s.at = time.Time{} }

// lookForStrays reports the sender of the latest stray datagram to the peer table,
// when that is due. Another interface's P_Key is not this one's business.
func (f *Iface) lookForStrays(now time.Time) {
	s := &f.nbrs.strays
	if s.at.IsZero() || now.Before(s.at) {
		return
	}
	s.at = now.Add(strayInterval)
	latest := s.device.Strays()
	if latest.Count == s.seen {
		return
	}
	s.seen = latest.Count
	if own := f.fab.att.plan.PKey; latest.PKey&^hca.PKeyMembership == own&^hca.PKeyMembership {
		f.step(neigh.Stray{GID: latest.SGID, QPN: latest.SrcQPN})
	}
}
