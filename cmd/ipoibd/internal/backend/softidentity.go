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

// softSource finds the software HCA, which is present as long as its netdev.
type softSource struct {
	netdev string

	mu       sync.Mutex // guards what follows
	index    int        // of the netdev that guid belongs to
	guid     hca.GUID   // of the HCA
	fallback hca.GUID   // of an HCA on a netdev without a MAC
}

// Find implements HCA. The GUID stays the same as long as the netdev exists, even if its MAC
// changes.
func (s *softSource) Find() (qprecovery.Identity, error) {
	n, err := udp.FindNetdev(s.netdev)
	if err != nil {
		return qprecovery.Identity{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != n.Index {
		if s.guid, err = s.newGUID(n.MAC); err != nil {
			return qprecovery.Identity{}, err
		}
		s.index = n.Index
	}
	return qprecovery.Identity{
		NodeGUID: s.guid, PortGUID: s.guid, SysImageGUID: s.guid, Index: uint32(n.Index), Name: s.netdev,
	}, nil
}

// Watch implements HCA.
func (s *softSource) Watch(ctx context.Context) (<-chan struct{}, error) {
	return udp.WatchNetdevs(ctx)
}

func (s *softSource) newGUID(mac [6]byte) (_ hca.GUID, err error) {
	if mac != [6]byte{} {
		return soft.GUIDOf(mac), nil
	}
	if s.fallback == (hca.GUID{}) { // only once, because a reset must not open files
		s.fallback, err = hostGUID(s.netdev)
	}
	return s.fallback, err
}

// hostGUID returns the GUID of an HCA on a netdev without a MAC, such as a tunnel. It is
// derived from the machine and the netdev, so it is stable and unique. The machine is
// identified by machine-id(5), or by the host's name if there is none.
func hostGUID(netdev string) (hca.GUID, error) {
	text, err := os.ReadFile("/etc/machine-id")
	machine := strings.TrimSpace(string(text))
	if err != nil || machine == "" {
		if machine, err = os.Hostname(); err != nil {
			return hca.GUID{}, fmt.Errorf("make a GUID for %s, which has no MAC: %w", netdev, err)
		}
	}
	return guidOf(machine, netdev), nil
}

// guidOf returns a hash as an EUI-64 of a single interface that is locally administered, which
// means that the second bit is clear in the modified form.
func guidOf(machine, netdev string) hca.GUID {
	sum := sha256.Sum256([]byte("ipoibd\x00" + machine + "\x00" + netdev))
	g := hca.GUID(sum[:8])
	g[0] &^= 3
	return g
}
