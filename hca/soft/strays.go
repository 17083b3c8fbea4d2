package soft

import (
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// strays holds the senders of intact datagrams to QPNs without a QP.
type strays struct {
	mu      sync.Mutex
	count   uint64 // of their datagrams
	senders hca.Strays
	readers map[*func()]struct{} // to notify
}

// note records the sender of a datagram for a QPN without a QP, unless no QP of this
// device can ever have had it. A new sender replaces the one that has been silent
// longest.
func (s *strays) note(in *softqp.Inbound) {
	if in.DestQPN <= hca.QPNGSI || in.DestQPN == hca.QPNMulticast {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	from := hca.Stray{
		Number: s.count,
		PKey:   in.PKey,
		QKey:   in.QKey,
		SGID:   hca.GIDFromAddr(in.Path.Src),
		SrcQPN: in.SrcQPN,
	}
	place := &s.senders[0]
	for i := range s.senders {
		other := &s.senders[i]
		if other.PKey == from.PKey && other.QKey == from.QKey &&
			other.SGID == from.SGID && other.SrcQPN == from.SrcQPN {
			place = other
			break
		}
		if other.Number < place.Number {
			place = other
		}
	}
	*place = from
	for f := range s.readers {
		(*f)()
	}
}

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() (hca.Strays, bool) {
	d.strays.mu.Lock()
	defer d.strays.mu.Unlock()
	return d.strays.senders, true
}

// NotifyStrays implements [hca.StrayReporter].
func (d *Device) NotifyStrays(f func()) (stop func()) {
	s := &d.strays
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers == nil {
		s.readers = map[*func()]struct{}{}
	}
	s.readers[&f] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.readers, &f)
	}
}
