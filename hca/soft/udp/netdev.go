package udp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
)

// DefaultNetdev chooses the netdev if the configuration names none: the netdev of the default
// route, IPv4 before IPv6, or else the only netdev that is up and is neither the loopback nor
// a TAP. If there is no such netdev or more than one, the error names the candidates and wraps
// hca.ErrNoDevice.
func DefaultNetdev() (string, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	links, err := kernel.List(handle.LinkList)
	if err != nil {
		return "", fmt.Errorf("list the netdevs: %w", err)
	}
	defaults, err := defaultRoutes(handle)
	if err != nil {
		return "", err
	}
	return chooseNetdev(links, defaults)
}

// defaultRoutes returns the default routes of IPv4, then those of IPv6: the unicast routes of the main table
// without a destination.
func defaultRoutes(handle *netlink.Handle) (routes []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r, err := kernel.List(func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(family, &netlink.Route{Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST)
		})
		if err != nil {
			return nil, fmt.Errorf("list the routes: %w", err)
		}
		routes = append(routes, r...)
	}
	return routes, nil
}

func chooseNetdev(links []netlink.Link, defaults []netlink.Route) (string, error) {
	candidates := slices.DeleteFunc(slices.Clone(links), unsuitable)
	if link := routed(candidates, defaults); link != nil {
		return link.Attrs().Name, nil
	}
	switch len(candidates) {
	case 0:
		return "", fmt.Errorf("choose a netdev: only loopback and TAPs are up: %w", hca.ErrNoDevice)
	case 1:
		return candidates[0].Attrs().Name, nil
	}
	return "", fmt.Errorf("choose a netdev: no default route, and several are up: %s: %w",
		names(candidates), hca.ErrNoDevice)
}

// unsuitable reports whether a netdev cannot be the default underlay. A TAP cannot, because
// this program creates TAPs itself.
func unsuitable(link netlink.Link) bool {
	if tun, ok := link.(*netlink.Tuntap); ok && tun.Mode == netlink.TUNTAP_MODE_TAP {
		return true
	}
	flags := link.Attrs().Flags
	return flags&net.FlagUp == 0 || flags&net.FlagLoopback != 0
}

// routed returns the candidate that the best default route leads to, or nil if no default
// route leads to one.
func routed(candidates []netlink.Link, defaults []netlink.Route) netlink.Link {
	defaults = slices.SortedStableFunc(slices.Values(defaults), func(a, b netlink.Route) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Priority, b.Priority)) // AF_INET < AF_INET6
	})
	for _, r := range defaults {
		i := slices.IndexFunc(candidates, func(l netlink.Link) bool {
			leads := func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == l.Attrs().Index }
			return r.LinkIndex == l.Attrs().Index || slices.ContainsFunc(r.MultiPath, leads)
		})
		if i >= 0 {
			return candidates[i]
		}
	}
	return nil
}

func names(links []netlink.Link) string {
	var out []string
	for _, l := range links {
		out = append(out, l.Attrs().Name)
	}
	return strings.Join(out, ", ")
}

// Netdev identifies a netdev; another netdev with the same name differs.
type Netdev struct {
	Index int
	MAC   [6]byte // zero if it has none
}

// FindNetdev looks a netdev up by its name. It returns hca.ErrNoDevice if there is none in the
// calling thread's network namespace.
func FindNetdev(name string) (Netdev, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Netdev{}, fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return Netdev{}, fmt.Errorf("netdev %q: %w", name, linkError(err))
	}
	n := Netdev{Index: link.Attrs().Index}
	copy(n.MAC[:], link.Attrs().HardwareAddr)
	return n, nil
}

// WatchNetdevs returns a channel that delivers a value at the start, and whenever a netdev of
// the calling thread's network namespace may have appeared, disappeared or changed since the
// last receive. It is closed when ctx ends.
func WatchNetdevs(ctx context.Context) (<-chan struct{}, error) {
	events, err := kernel.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	go func() {
		defer close(changed)
		defer events.Close()
		events.Follow(ctx, func([]byte) bool { return true }, func() {
			select {
			case changed <- struct{}{}:
			default: // the last one has not been received yet
			}
		})
	}()
	return changed, nil
}

// Look returns the current state of a netdev. It returns hca.ErrNoDevice if there is none of
// that name in the calling thread's network namespace.
func Look(netdev string) (transport.State, error) {
	w, err := newWatcher(netdev)
	if err != nil {
		return transport.State{}, fmt.Errorf("netdev %q: %w", netdev, err)
	}
	defer w.Close()
	return w.State(), nil
}
