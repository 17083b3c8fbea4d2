package udp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// Why gates stay shut: IPsec would see the packets of the daemon, but not those of the fast path.
var (
	errIPsec    = errors.New("the host has IPsec policies (`ip xfrm policy`), which the fast path would bypass")
	errNoPolicy = errors.New("the host drops packets that no IPsec policy concerns (`ip xfrm policy getdefault`), which the fast path would bypass")
)

// policyGroup is the multicast group of NETLINK_XFRM for changes of policies.
const policyGroup = nl.XFRMNLGRP_POLICY

// loadEvery is the pause after which the daemon looks again whether a kernel without IPsec has loaded it meanwhile. The kernel
// may run modprobe at each look.
const loadEvery = time.Minute

// subscribePolicies subscribes to changes of policies.
func (s *gates) subscribePolicies() (policies *kernel.Notifications, err error) {
	entered := kernel.InNamespace(s.watch.ns, func() { policies, err = kernel.Subscribe(unix.NETLINK_XFRM, policyGroup) })
	return policies, errors.Join(entered, err)
}

// unknownPolicies returns why gates stay shut after an error of subscribePolicies: nil if the kernel has no IPsec.
func unknownPolicies(err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	return fmt.Errorf("cannot find out whether there are IPsec policies: %w", err)
}

// followPolicies keeps all gates shut while there are IPsec policies, until ctx ends. policies is nil if there was an error.
func (s *gates) followPolicies(ctx context.Context, policies *kernel.Notifications) {
	for policies == nil {
		pause := loadEvery
		if s.refused() != nil {
			pause = readAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		var err error
		if policies, err = s.subscribePolicies(); err != nil {
			s.refuse(unknownPolicies(err))
		}
	}
	s.review(ctx)
	policies.Follow(ctx, anything, func() { s.review(ctx) })
}

// refused returns why all gates stay shut, or nil.
func (s *gates) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ipsec
}

// refuse keeps all gates shut for a reason or, if that is nil, no longer.
func (s *gates) refuse(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ipsec = why
	for g := range s.list {
		g.refuse(why)
	}
}

// policies returns why the gates must stay shut, or nil. Without an answer of the kernel, that is why, and known is false.
func (s *gates) policies() (why error, known bool) {
	var err error
	entered := kernel.InNamespace(s.watch.ns, func() {
		var list []netlink.XfrmPolicy
		list, err = kernel.List(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
		switch {
		case err != nil:
		case len(list) > 0:
			why = errIPsec
		case blocksByDefault():
			why = errNoPolicy
		}
	})
	if err = errors.Join(entered, err); err != nil {
		return fmt.Errorf("cannot find out whether there are IPsec policies: %w", err), false
	}
	return why, true
}

// The request for what happens to packets that no policy concerns (linux/xfrm.h, since Linux 5.15).
const (
	getDefault   = 0x28 // XFRM_MSG_GETDEFAULT
	defaultLen   = 3    // struct xfrm_userpolicy_default: for each direction
	defaultBlock = 1    // XFRM_USERPOLICY_BLOCK
)

// blocksByDefault reports whether the kernel drops packets that no policy concerns. Older kernels never do.
func blocksByDefault() bool {
	req := nl.NewNetlinkRequest(getDefault, 0)
	req.AddRawData(make([]byte, defaultLen+1))
	answers, err := req.Execute(unix.NETLINK_XFRM, getDefault)
	return err == nil && len(answers) > 0 && len(answers[0]) >= defaultLen && slices.Contains(answers[0][:defaultLen], defaultBlock)
}

// review keeps all gates shut while there are IPsec policies, or while that is unknown. It returns once it is known, or with ctx.
func (s *gates) review(ctx context.Context) {
	for {
		why, known := s.policies()
		s.refuse(why)
		if known {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(readAgain):
		}
	}
}
