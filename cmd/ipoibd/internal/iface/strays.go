package iface

import (
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
)

// strayInterval is how often the device is asked for stray datagrams. Their sender
// loses its frames until it is answered.
const strayInterval = 50 * time.Millisecond

// strays reads the senders of stray datagrams from the device in use.
type strays struct {
	device hca.StrayReporter // in use last
	seen   uint64            // the latest number read
	at     time.Time         // when to ask the device next; zero: never
}

// follow starts to read the strays of a device that is in use now. Earlier strays count
// as well: they came after the device was opened, for an earlier queue pair.
func (s *strays) follow(dev hca.StrayReporter, now time.Time) {
	if dev != s.device {
		*s = strays{device: dev}
	}
	s.at = now
}

// stop ends the reading; the same device may be followed again.
func (s *strays) stop() { s.at = time.Time{} }

// lookForStrays reports the senders of stray datagrams since the last reading to the
// peer table, when a reading is due. It leaves senders with another P_Key to the
// interface of that P_Key, and ignores those without the group's Q_Key, which are not
// members. It does not ask again a device that never reports any.
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
		if from.PKey&^hca.PKeyMembership == plan.PKey&^hca.PKeyMembership && from.QKey == plan.Broadcast().QKey {
			f.step(neigh.Stray{GID: from.SGID, QPN: from.SrcQPN})
		}
	}
}
