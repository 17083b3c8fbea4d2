package soft

import (
	"errors"
	"net/netip"
)

// Reasons why an address cannot be a peer's.
var (
	errUnspecified = errors.New("it is the unspecified address")
	errMulticast   = errors.New("it is a multicast address")
	errBroadcast   = errors.New("it is the broadcast address")
	errLoopback    = errors.New("it is a loopback address, and the underlay is not the loopback")
	errNoZone      = errors.New("it is a link-local address without a zone")
)

// CheckPeer reports why an address cannot be one of [Config.Peers] on an underlay. A
// peer is a single host, possibly this one. An IPv6 link-local address needs a zone,
// because without one it means a host on every link.
func CheckPeer(addr netip.Addr, underlay string) error {
	a := addr.Unmap()
	switch {
	case a.IsUnspecified():
		return errUnspecified
	case a.IsMulticast():
		return errMulticast
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errBroadcast
	case a.IsLoopback() && underlay != "lo":
		return errLoopback
	case a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "":
		return errNoZone
	}
	return nil
}
