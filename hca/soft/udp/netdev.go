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
	"ipoibd/hca/nlgroup"
	"ipoibd/hca/soft/transport"
)

// DefaultNetdev chooses the netdev for a configuration without one: that of the default
// route, IPv4 before IPv6, or else the only one that is up and neither loopback nor a
// TAP. If there is not exactly one, the error names the candidates and wraps
// hca.ErrNoDevice.
func DefaultNetdev() (string, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		return "", fmt.Errorf("list the netdevs: %w", err)
	}
	routes, err := listRoutes(handle)
	if err != nil {
		return "", err
	}
	return chooseNetdev(links, routes)
}

// listRoutes lists the routes of IPv4, then those of IPv6.
func listRoutes(handle *netlink.Handle) (routes []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r, err := handle.RouteList(nil, family)
		if err != nil {
			return nil, fmt.Errorf("list the routes: %w", err)
		}
		routes = append(routes, r...)
	}
	return routes, nil
}

func chooseNetdev(links []netlink.Link, routes []netlink.Route) (string, error) {
	candidates := slices.DeleteFunc(slices.Clone(links), unsuitable)
	if link := routed(candidates, routes); link != nil {
		return link.Attrs().Name, nil
	}
	switch len(candidates) {
	case 0:
		return "", fmt.Errorf("choose a netdev: only loopback and TAPs are up: %w", hca.ErrNoDevice)
	case 1:
		return candidates[0].Attrs().Name, nil
	}
	return "", fmt.Errorf("choose a netdev: no default route, and several are up: %s: %w", names(candidates), hca.ErrNoDevice)
}

// unsuitable reports whether a netdev cannot be the default underlay. The daemon creates
// TAPs itself, so they are never the default.
func unsuitable(link netlink.Link) bool {
	if tun, ok := link.(*netlink.Tuntap); ok && tun.Mode == netlink.TUNTAP_MODE_TAP {
		return true
	}
	flags := link.Attrs().Flags
	return flags&net.FlagUp == 0 || flags&net.FlagLoopback != 0
}

// routed returns the candidate of the best default route, or nil if there is none.
func routed(candidates []netlink.Link, routes []netlink.Route) netlink.Link {
	defaults := slices.DeleteFunc(slices.Clone(routes), func(r netlink.Route) bool { return !isDefault(r) })
	slices.SortStableFunc(defaults, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	slices.SortStableFunc(defaults, func(a, b netlink.Route) int { return cmp.Compare(family(a), family(b)) })
	for _, r := range defaults {
		i := slices.IndexFunc(candidates, func(l netlink.Link) bool { return leadsTo(r, l.Attrs().Index) })
		if i >= 0 {
			return candidates[i]
		}
	}
	return nil
}

func isDefault(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// family sorts routes: unix.AF_INET is less than unix.AF_INET6.
func family(r netlink.Route) int { return r.Family }

// leadsTo also considers the hops of a multipath route.
func leadsTo(r netlink.Route, index int) bool {
	return r.LinkIndex == index ||
		slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == index })
}

func names(links []netlink.Link) string {
	var out []string
	for _, l := range links {
		out = append(out, l.Attrs().Name)
	}
	return strings.Join(out, ", ")
}

// Netdev distinguishes a netdev from another one with its name.
type Netdev struct {
	Index int
	MAC   [6]byte // zero if it has none
}

// FindNetdev returns a netdev by its name, or hca.ErrNoDevice if the calling thread's
// network namespace has none.
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

// WatchNetdevs returns a channel that gets a value at the start, and whenever a netdev of
// the calling thread's network namespace may have been added, removed or changed since
// the last receive. It is closed when ctx ends.
func WatchNetdevs(ctx context.Context) (<-chan struct{}, error) {
	events, err := nlgroup.Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
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

// Look returns the current state of a netdev, or hca.ErrNoDevice if the calling thread's
// network namespace has none with this name.
func Look(netdev string) (transport.State, error) {
	w, err := newWatcher(netdev)
	if err != nil {
		return transport.State{}, fmt.Errorf("netdev %q: %w", netdev, err)
	}
	defer w.Close()
	return w.State(), nil
}
