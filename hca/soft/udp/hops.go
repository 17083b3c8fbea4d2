package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// surroundings are what the gates of a transport depend on: the routes to their peers, and IPsec, whose policies the fast
// path would bypass. A goroutine for each follows the kernel's notifications, from the first gate until close.
type surroundings struct {
	watch *watcher // of the underlay

	mu    sync.Mutex // guards what follows
	gates map[*gate]struct{}
	end   context.CancelFunc // of the goroutines; nil: they do not run
	ended sync.WaitGroup
	ipsec error // what is known of the policies; nil: there are none
}

// errIPsec means that there are IPsec policies.
var errIPsec = errors.New("there are IPsec policies (`ip xfrm policy`), which the fast path would bypass")

// Multicast groups of NETLINK_XFRM (linux/xfrm.h).
const xfrmPolicies = 4 // XFRMNLGRP_POLICY

// add follows the surroundings for a gate, which they shut while there are IPsec policies.
func (s *surroundings) add(g *gate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		if err := s.start(); err != nil {
			return err
		}
	}
	if s.gates == nil {
		s.gates = map[*gate]struct{}{}
	}
	s.gates[g] = struct{}{}
	g.refuse(s.ipsec != nil)
	return nil
}

func (s *surroundings) remove(g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gates, g)
}

// start subscribes before it reads, so that it misses no change. mu is held.
func (s *surroundings) start() error {
	var routes, policies *kernel.Notifications
	var err, noIPsec error
	entered := kernel.InNamespace(s.watch.ns, func() {
		routes, err = kernel.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
		policies, noIPsec = kernel.Subscribe(unix.NETLINK_XFRM, xfrmPolicies)
	})
	if err = errors.Join(entered, err); err != nil {
		return fmt.Errorf("follow the kernel's routes for the fast path: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	all := func([]byte) bool { return true }
	s.ended.Go(func() { routes.Follow(ctx, all, s.reroute) })
	switch {
	case noIPsec == nil:
		s.ipsec = s.policies()
		s.ended.Go(func() { policies.Follow(ctx, all, s.review) })
	case !errors.Is(noIPsec, unix.EPROTONOSUPPORT): // the kernel may have IPsec
		s.ipsec = noIPsec
	}
	return nil
}

// close ends the goroutines.
func (s *surroundings) close() {
	s.mu.Lock()
	if s.end == nil {
		s.end = func() {} // none start any more
	}
	s.end()
	s.mu.Unlock()
	s.ended.Wait()
}

// list returns the gates.
func (s *surroundings) list() (out []*gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.gates {
		out = append(out, g)
	}
	return out
}

// reroute looks up the next hops of all peers again.
func (s *surroundings) reroute() {
	for _, g := range s.list() {
		g.reroute()
	}
}

// review reads the IPsec policies again.
func (s *surroundings) review() {
	found := s.policies()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ipsec = found
	for g := range s.gates {
		g.refuse(found != nil)
	}
}

// policies returns errIPsec if there are IPsec policies, or why that is not known.
func (s *surroundings) policies() (err error) {
	entered := kernel.InNamespace(s.watch.ns, func() {
		var list []netlink.XfrmPolicy
		if list, err = netlink.XfrmPolicyList(netlink.FAMILY_ALL); err == nil && len(list) > 0 {
			err = errIPsec
		}
	})
	return errors.Join(entered, err)
}

// hop returns the next hop from an address of the underlay to a peer; invalid: there is no way.
func (s *surroundings) hop(from, to netip.Addr) (hop netip.Addr, err error) {
	entered := kernel.InNamespace(s.watch.ns, func() { hop, err = nextHop(s.watch.index, from, to) })
	return hop, errors.Join(entered, err)
}

// nextHop is hop in the thread's namespace.
func nextHop(index int, from, to netip.Addr) (netip.Addr, error) {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{OifIndex: index, SrcAddr: from.AsSlice()})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the route to %s: %w", to, err)
	}
	for _, r := range routes {
		gw := r.Gw
		if via, ok := r.Via.(*netlink.Via); ok {
			gw = via.Addr
		}
		hop, ok := netip.AddrFromSlice(gw)
		switch {
		case r.LinkIndex != index || r.Type != 0 && r.Type != unix.RTN_UNICAST:
		case ok:
			return hop.Unmap(), nil
		default:
			return to, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("find the route to %s: none is on the underlay", to)
}
