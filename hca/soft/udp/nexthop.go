package udp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// routeGroups are the multicast groups of NETLINK_ROUTE for what may change a next hop.
var routeGroups = []int{
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP,
}

// reroute looks up the next hops of all peers again.
func (s *gates) reroute() {
	for _, g := range s.all() {
		g.reroute()
	}
}

// hops returns the next hops from an address of the underlay to some others: invalid for those without a route, and for those
// that the kernel has not resolved: it would queue the frame and, once the neighbour answers, send it to the wrong one
// (neigh_update looks the neighbour up by the frame's dst, which belongs to ib0). The daemon's own packets make the kernel
// resolve them.
func (s *gates) hops(from netip.Addr, to ...netip.Addr) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	_ = kernel.InNamespace(s.watch.ns, func() { // without it, nothing has a route
		for _, dst := range to {
			out[dst] = netip.Addr{}
			if hop, err := nextHop(s.watch.index, from, dst); err == nil && s.isResolved(hop) {
				out[dst] = hop
			}
		}
	})
	return out
}

func (s *gates) isResolved(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.resolved[a]
	return ok
}

// valid are the states of a neighbour to which the kernel sends at once (NUD_VALID, include/net/neighbour.h).
const valid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY

// neighbours reads the resolved neighbours on the underlay.
func (s *gates) neighbours() (out map[netip.Addr]struct{}, err error) {
	out = map[netip.Addr]struct{}{}
	entered := kernel.InNamespace(s.watch.ns, func() {
		var list []netlink.Neigh
		list, err = kernel.List(func() ([]netlink.Neigh, error) { return netlink.NeighList(s.watch.index, netlink.FAMILY_ALL) })
		for i := range list {
			if a, ok := netip.AddrFromSlice(list[i].IP); ok && list[i].State&valid != 0 {
				out[a.Unmap()] = struct{}{}
			}
		}
	})
	return out, errors.Join(entered, err)
}

// concerns reports whether a message of RTNLGRP_NEIGH says that a neighbour on the underlay is resolved now, or no longer.
func (s *gates) concerns(msg []byte) bool {
	if len(msg) < unix.SizeofNlMsghdr {
		return false
	}
	n, err := netlink.NeighDeserialize(msg[unix.SizeofNlMsghdr:])
	if err != nil || n.LinkIndex != s.watch.index {
		return false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	gone := binary.NativeEndian.Uint16(msg[4:]) == unix.RTM_DELNEIGH
	return ok && s.isResolved(a.Unmap()) != (!gone && n.State&valid != 0)
}

// rereadNeighbours reads them until it succeeds, or ctx ends.
func (s *gates) rereadNeighbours(ctx context.Context) {
	for {
		now, err := s.neighbours()
		if err == nil {
			s.mu.Lock()
			s.resolved = now
			s.mu.Unlock()
			s.reroute()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(readAgain):
		}
	}
}

// nextHop returns the next hop on the route of the thread's namespace through an interface.
func nextHop(index int, from, to netip.Addr) (netip.Addr, error) {
	routes, err := routesTo(to, &netlink.RouteGetOptions{OifIndex: index, SrcAddr: from.AsSlice()})
	if err != nil {
		return netip.Addr{}, err
	}
	r := &routes[0]
	switch {
	case r.LinkIndex != index || r.Type != unix.RTN_UNICAST:
		return netip.Addr{}, fmt.Errorf("look up the route to %s: none through the underlay", to)
	case r.Encap != nil || r.NewDst != nil: // the programs would send packets without the encapsulation
		return netip.Addr{}, fmt.Errorf("look up the route to %s: it encapsulates packets", to)
	}
	gateway := r.Gw
	if via, ok := r.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if hop, ok := netip.AddrFromSlice(gateway); ok {
		return hop.Unmap(), nil
	}
	return to, nil
}

// routesTo asks the kernel for the route to an address; there is at least one.
func routesTo(to netip.Addr, opts *netlink.RouteGetOptions) ([]netlink.Route, error) {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), opts)
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return nil, fmt.Errorf("look up the route to %s: %w", to, err)
	}
	return routes, nil
}

// RouteMTU implements transport.Paths. It asks for the entry of the routing table, which, unlike
// the route of a socket, has no exceptions.
func (t *Transport) RouteMTU(dst netip.Addr) (mtu int, err error) {
	var routes []netlink.Route
	entered := kernel.InNamespace(t.watch.ns, func() {
		routes, err = routesTo(dst, &netlink.RouteGetOptions{OifIndex: t.watch.index, FIBMatch: true})
	})
	if err = errors.Join(entered, err); err != nil {
		return 0, err
	}
	mtu = t.watch.mtu()
	if m := routes[0].MTU; m > 0 {
		mtu = min(mtu, m)
	}
	return mtu, nil
}
