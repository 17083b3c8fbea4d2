package iface

import (
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
)

// strayInterval is how often the device is asked for stray datagrams. Their
// sender loses what it sends until it is answered.
const strayInterval = 50 * time.Millisecond

// strays follow the senders of stray datagrams to the device in use.
type strays struct {
	device hca.StrayReporter // in use last
	seen   uint64            // the latest number read
	at     time.Time         // when to ask the device next; zero: never
}

// follow begins with a device that is in use now. The strays from before count as
// well: they came after the device was opened, to a queue pair from before.
func (s *strays) follow(dev hca.StrayReporter, now time.Time) {
	if dev != s.device {
		*s = strays{device: dev}
	}
	s.at = now
}

// stop ends it; the same device may be followed again.
func (s *strays) stop() { s.at = time.Time{} }

// lookForStrays reports the senders of stray datagrams since the last reading to the
// peer table, when that is due. Senders of another P_Key are left to its interface, and
// those without the group's Q_Key are no members: they learn nothing. A device that
// never reports any is not asked again.
func (f *Iface) lookForStrays(now time.Time) {
	s := &f.nbrs.strays
	if s.at.IsZero() || now.Before(s.at) {
		return
	}
	senders, ok := s.device.Strays()
	if !ok {
		s.stop()
		return
	}
	s.at = now.Add(strayInterval)
	plan, seen := f.fab.att.plan, s.seen
	for i := range senders {
		from := &senders[i]
		if from.Number <= seen {
			continue
		}
		s.seen = max(s.seen, from.Number)
		if from.PKey&^hca.PKeyMembership == plan.PKey&^hca.PKeyMembership && from.QKey == plan.Broadcast.QKey {
			f.step(neigh.Stray{GID: from.SGID, QPN: from.SrcQPN})
		}
	}
}
