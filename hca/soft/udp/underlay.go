package udp

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// stateOf returns the state of a netdev that netlink has listed.
func stateOf(link *netlink.LinkAttrs, addrs []netlink.Addr) transport.State {
	// Up means administratively up and with carrier (RFC 2863 operational state). A netdev
	// that does not report an operational state has OperUnknown.
	carrier := link.OperState == netlink.OperUp || link.OperState == netlink.OperUnknown
	s := transport.State{
		Name: link.Name, Index: link.Index, Present: true, Up: link.Flags&net.FlagUp != 0 && carrier, MTU: link.MTU,
	}
	copy(s.MAC[:], link.HardwareAddr)
	for i := range addrs {
		if a, ok := usable(&addrs[i]); ok {
			s.Addrs = append(s.Addrs, a)
		}
	}
	transport.SortAddrs(s.Addrs)
	return s
}

// gone returns the state after the netdev was deleted, or moved to another network namespace.
func gone(s transport.State) transport.State {
	s.Present, s.Up, s.Addrs = false, false, nil
	return s
}

// usable returns an address if packets may be sent from it. They may not if its uniqueness is
// still being tested or was refuted (RFC 4862, 5.4).
func usable(addr *netlink.Addr) (netip.Addr, bool) {
	if addr.IPNet == nil || addr.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(addr.IP)
	return a.Unmap(), ok
}
