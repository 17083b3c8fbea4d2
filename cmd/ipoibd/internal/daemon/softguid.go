package daemon

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"

	"ipoibd/hca"
)

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
