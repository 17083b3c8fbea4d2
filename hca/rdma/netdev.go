package rdma

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// Netdev is the configuration of a netdev that is lost when its driver is unbound: its MAC and
// MTU, whether it is up, its addresses and its routes. Queueing disciplines, sysctls and the
// settings of ethtool are not part of it.
type Netdev struct {
	name   string
	mac    net.HardwareAddr
	mtu    int
	up     bool
	addrs  []netlink.Addr
	routes []netlink.Route
}

// SaveNetdev reads the configuration of a netdev in the network namespace of the caller.
func SaveNetdev(name string) (*Netdev, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("read netdev %s: %w", name, err)
	}
	a := link.Attrs()
	n := &Netdev{name: name, mac: a.HardwareAddr, mtu: a.MTU, up: a.Flags&net.FlagUp != 0}
	n.addrs, err = kernel.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("read the addresses of netdev %s: %w", name, err)
	}
	n.addrs = slices.DeleteFunc(n.addrs, func(a netlink.Addr) bool {
		return a.IP.To4() == nil && a.IP.IsLinkLocalUnicast()
	})
	every := &netlink.Route{LinkIndex: a.Index, Table: unix.RT_TABLE_UNSPEC}
	n.routes, err = kernel.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, every, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("read the routes of netdev %s: %w", name, err)
	}
	n.routes = slices.DeleteFunc(n.routes, func(r netlink.Route) bool {
		return r.Protocol == unix.RTPROT_KERNEL || r.Protocol == unix.RTPROT_RA
	})
	// A gateway is reached through another route.
	slices.SortStableFunc(n.routes, func(a, b netlink.Route) int { return int(b.Scope) - int(a.Scope) })
	return n, nil
}

const (
	// netdevLimit is how long Restore waits for the netdev. Its driver may create it in the
	// background, and udev may take a moment to rename it.
	netdevLimit = 10 * time.Second
	netdevEvery = 20 * time.Millisecond
)

// Restore gives the configuration to the netdev of the same name. It waits for that netdev for
// [netdevLimit]. It does not set a netdev up that still has another name,
// because udev could not rename it then. What exists already stays, such as what a network manager has added.
func (n *Netdev) Restore() error {
	late := time.Now().Add(netdevLimit)
	link, err := netlink.LinkByName(n.name)
	for ; err != nil && time.Now().Before(late); link, err = netlink.LinkByName(n.name) {
		time.Sleep(netdevEvery)
	}
	if err != nil {
		return fmt.Errorf("configure netdev %s: %w", n.name, err)
	}
	var errs []error
	try := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("configure netdev %s: %s: %w", n.name, what, err))
		}
	}
	if !slices.Equal(link.Attrs().HardwareAddr, n.mac) {
		try("MAC", netlink.LinkSetHardwareAddr(link, n.mac))
	}
	try("MTU", netlink.LinkSetMTU(link, n.mtu))
	if n.up {
		try("up", netlink.LinkSetUp(link))
	}
	for _, a := range n.addrs {
		a.LinkIndex = 0
		a.Flags &= unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_HOMEADDRESS
		if a.Broadcast == nil {
			a.Broadcast = net.IPv4zero // else the library invents one
		}
		try("address "+a.IPNet.String(), netlink.AddrReplace(link, &a))
	}
	for _, r := range n.routes {
		r.LinkIndex = link.Attrs().Index
		r.Flags &= unix.RTNH_F_ONLINK // others are states, such as linkdown
		try("route "+r.String(), netlink.RouteReplace(&r))
	}
	return errors.Join(errs...)
}
