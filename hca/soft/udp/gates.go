package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/kernel"
)

// readAgain is the pause before the kernel is asked again after an error, which may pass, such as that no descriptor is left.
const readAgain = time.Second

// gates are the gates of a transport, which depend on the routes to their peers and the neighbours on them (nexthop.go), and on
// the host's IPsec policies (ipsec.go). From the first gate until close, a goroutine follows the kernel's notifications of
// each.
type gates struct {
	watch *watcher // of the underlay

	mu     sync.Mutex // guards what follows
	list   map[*gate]struct{}
	end    context.CancelFunc // of the goroutines; nil: they do not run
	closed bool
	ipsec  error // why all gates stay shut; nil: they need not
	// resolved are the neighbours on the underlay whose MAC the kernel knows.
	resolved map[netip.Addr]struct{}

	ended sync.WaitGroup
}

// add follows the surroundings of a gate.
func (s *gates) add(g *gate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return hca.ErrClosed
	}
	if s.end == nil {
		if err := s.start(); err != nil {
			return err
		}
	}
	s.list[g] = struct{}{}
	g.refuse(s.ipsec)
	return nil
}

func (s *gates) remove(g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, g)
}

// all returns the gates.
func (s *gates) all() (out []*gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.list {
		out = append(out, g)
	}
	return out
}

// start subscribes before it reads, so that it misses no change. mu is held.
func (s *gates) start() (err error) {
	var routes, neighbours *kernel.Notifications
	entered := kernel.InNamespace(s.watch.ns, func() {
		if routes, err = kernel.Subscribe(unix.NETLINK_ROUTE, routeGroups...); err != nil {
			return
		}
		if neighbours, err = kernel.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_NEIGH); err != nil {
			_ = routes.Close()
		}
	})
	if err = errors.Join(entered, err); err != nil {
		return fmt.Errorf("follow the kernel's routes and neighbours for the fast path: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	s.list, s.end = map[*gate]struct{}{}, end
	s.ended.Go(func() { routes.Follow(ctx, anything, s.reroute) })
	s.ended.Go(func() {
		s.rereadNeighbours(ctx)
		neighbours.Follow(ctx, s.concerns, func() { s.rereadNeighbours(ctx) })
	})
	policies, err := s.subscribePolicies()
	if err == nil {
		s.ipsec, _ = s.policies()
	} else {
		s.ipsec = unknownPolicies(err)
	}
	s.ended.Go(func() { s.followPolicies(ctx, policies) })
	return nil
}

// anything makes each notification count.
func anything([]byte) bool { return true }

// close ends the goroutines. Idempotent.
func (s *gates) close() {
	s.mu.Lock()
	s.closed = true
	if s.end != nil {
		s.end()
	}
	s.mu.Unlock()
	s.ended.Wait()
}
