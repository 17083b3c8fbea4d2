package daemon

import (
	"context"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// softSource has the software HCA while its netdev is there.
type softSource struct {
	netdev string

	mu       sync.Mutex // guards what follows
	index    int        // of the netdev that guid is of
	guid     hca.GUID   // of the HCA
	fallback hca.GUID   // of one on a netdev without a MAC
}

func (s *softSource) find() (qprecovery.Identity, error) {
	n, err := udp.FindNetdev(s.netdev)
	if err != nil {
		return qprecovery.Identity{}, err
	}
	guid, err := s.guidOf(n)
	return qprecovery.Identity{
		NodeGUID: guid, PortGUID: guid, SysImageGUID: guid, Index: uint32(n.Index), Name: s.netdev,
	}, err
}

func (s *softSource) watch(ctx context.Context) (<-chan struct{}, error) {
	return udp.WatchNetdevs(ctx)
}

// guidOf keeps the GUID for as long as the netdev lives, also when its MAC
// changes.
func (s *softSource) guidOf(n udp.Netdev) (guid hca.GUID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != n.Index {
		if s.guid, err = s.newGUID(n); err != nil {
			return guid, err
		}
		s.index = n.Index
	}
	return s.guid, nil
}

func (s *softSource) newGUID(n udp.Netdev) (_ hca.GUID, err error) {
	if n.MAC != [6]byte{} {
		return soft.GUIDOf(n.MAC), nil
	}
	if s.fallback == (hca.GUID{}) { // once: a reset opens no file
		s.fallback, err = hostGUID(s.netdev)
	}
	return s.fallback, err
}
