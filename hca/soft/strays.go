package soft

import (
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// strays are the right datagrams to QPNs that no QP has.
type strays struct {
	mu   sync.Mutex
	last hca.Stray
}

// note counts a datagram for a QPN without a QP. Numbers that no QP of this
// device could have had are left out.
func (s *strays) note(in *softqp.Inbound) {
	if in.DestQPN <= hca.QPNGSI || in.DestQPN == hca.QPNMulticast {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = hca.Stray{
		Count: s.last.Count + 1,
		PKey:  in.PKey, SGID: hca.GIDFromAddr(in.Path.Src), SrcQPN: in.SrcQPN,
	}
}

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() hca.Stray {
	d.strays.mu.Lock()
	defer d.strays.mu.Unlock()
	return d.strays.last
}
