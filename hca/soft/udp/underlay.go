package udp

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// stateOf converts netlink's lists about a netdev into a state.
func stateOf(link *netlink.LinkAttrs, addrs []netlink.Addr) transport.State {
	s := transport.State{Name: link.Name, Index: link.Index, Present: true, Up: isUp(link), MTU: link.MTU}
	copy(s.MAC[:], link.HardwareAddr)
	for i := range addrs {
		if a, ok := usable(&addrs[i]); ok {
			s.Addrs = append(s.Addrs, a)
		}
	}
	slices.SortStableFunc(s.Addrs, func(a, b netip.Addr) int { return cmp.Compare(rank(a), rank(b)) })
	return s
}

// gone returns the state after the netdev was deleted, or moved to another network
// namespace.
func gone(s transport.State) transport.State {
	s.Present, s.Up, s.Addrs = false, false, nil
	return s
}

// same reports whether two states are equal.
func same(a, b transport.State) bool {
	return a.Name == b.Name && a.Index == b.Index && a.Present == b.Present && a.Up == b.Up &&
		a.MTU == b.MTU && a.MAC == b.MAC && slices.Equal(a.Addrs, b.Addrs)
}

// isUp reports whether a netdev is administratively up and has carrier (RFC 2863
// operational state, which is unknown for a netdev that does not report it).
func isUp(link *netlink.LinkAttrs) bool {
	carrier := link.OperState == netlink.OperUp || link.OperState == netlink.OperUnknown
	return link.Flags&net.FlagUp != 0 && carrier
}

// usable returns an address that may be used as a source, which excludes addresses whose
// duplicate address detection is running or has failed (RFC 4862, 5.4).
func usable(addr *netlink.Addr) (netip.Addr, bool) {
	if addr.IPNet == nil || addr.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(addr.IP)
	return a.Unmap(), ok
}

// rank sorts addresses as documented for transport.State.Addrs; equal ones keep the
// kernel's sequence.
func rank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 1
	case a.IsLinkLocalUnicast():
		return 0
	}
	return 2
}
