package backend

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
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

// Find implements HCA.
func (s *softSource) Find() (qprecovery.Identity, error) {
	n, err := udp.FindNetdev(s.netdev)
	if err != nil {
		return qprecovery.Identity{}, err
	}
	guid, err := s.guidOf(n)
	return qprecovery.Identity{
		NodeGUID: guid, PortGUID: guid, SysImageGUID: guid, Index: uint32(n.Index), Name: s.netdev,
	}, err
}

// Watch implements HCA.
func (s *softSource) Watch(ctx context.Context) (<-chan struct{}, error) {
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

// hostGUID is the GUID of a device on a netdev without a MAC, a tunnel say: that
// of this machine and netdev, stable and unlike any other's.
func hostGUID(netdev string) (hca.GUID, error) {
	id, err := machineID()
	if err != nil {
		return hca.GUID{}, fmt.Errorf("%s has no MAC to make a GUID from: %w", netdev, err)
	}
	return guidOf(id, netdev), nil
}

// machineID is what machine-id(5) has, the host's name where there is none.
func machineID() (string, error) {
	if text, err := os.ReadFile("/etc/machine-id"); err == nil {
		if id := strings.TrimSpace(string(text)); id != "" {
			return id, nil
		}
	}
	return os.Hostname()
}

// guidOf hashes an EUI-64 that is locally administered (its second bit clear in
// the modified form) and of one interface.
func guidOf(machine, netdev string) hca.GUID {
	sum := sha256.Sum256([]byte("ipoibd\x00" + machine + "\x00" + netdev))
	g := hca.GUID(sum[:8])
	g[0] &^= 3
	return g
}
