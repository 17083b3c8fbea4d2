package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/kernel"
)

// lookEvery is how often ADD checks whether the interface is complete in the pod.
const lookEvery = 20 * time.Millisecond

// pod is the network namespace of a pod.
type pod struct {
	ns *os.File
	nl *netlink.Handle
}

// openPod opens a namespace, which must not be the plugin's own. Errors have the specification's
// code 8.
func openPod(path string) (*pod, error) {
	there, err := os.Stat(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "cannot find the network namespace", err.Error())
	}
	if isOwn(path) {
		return nil, types.NewError(types.ErrInvalidNetNS, "the pod's network namespace is the host's", path)
	}
	if !there.Mode().IsRegular() { // opening a FIFO would block
		return nil, types.NewError(types.ErrInvalidNetNS, "not a network namespace", path)
	}
	ns, err := os.Open(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "cannot open the network namespace", err.Error())
	}
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, types.NewError(types.ErrInvalidNetNS,
			"cannot enter the network namespace", fmt.Sprintf("%s: %v", path, err))
	}
	return &pod{ns, nl}, nil
}

// isOwn reports whether a path leads to the plugin's own network namespace.
func isOwn(path string) bool {
	there, err := os.Stat(path)
	here, errHere := os.Stat("/proc/self/ns/net")
	return err == nil && errHere == nil && os.SameFile(here, there)
}

func (p *pod) close() {
	p.nl.Close()
	p.ns.Close()
}

// device is an interface as the kernel shows it.
type device struct {
	mac     string
	mtu     int
	up      bool
	carrier bool
	addrs   []netip.Prefix // without those still being checked for duplicates
	clashes []netip.Prefix // addresses that another host has too
	routes  []link.Route
}

// look returns the interface, or nil if it does not exist.
func (p *pod) look(name string) (*device, error) {
	l, err := p.nl.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	a := l.Attrs()
	d := &device{
		mac:     a.HardwareAddr.String(),
		mtu:     a.MTU,
		up:      a.RawFlags&unix.IFF_UP != 0,
		carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}
	addrs, err := kernel.List(func() ([]netlink.Addr, error) { return p.nl.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	for _, x := range addrs {
		switch at, err := prefix(*x.IPNet); {
		case err != nil:
			return nil, err
		case x.Flags&unix.IFA_F_DADFAILED != 0:
			d.clashes = append(d.clashes, at)
		case x.Flags&unix.IFA_F_TENTATIVE == 0:
			d.addrs = append(d.addrs, at)
		}
	}
	routes, err := kernel.List(func() ([]netlink.Route, error) { return p.nl.RouteList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", name, err)
	}
	for _, x := range routes {
		if x.Dst == nil {
			continue
		}
		to, err := prefix(*x.Dst)
		if err != nil {
			return nil, err
		}
		via, _ := netip.AddrFromSlice(x.Gw) // none: the zero Addr
		d.routes = append(d.routes, link.Route{To: to, Via: via.Unmap()})
	}
	return d, nil
}

// lacks returns what an interface lacks of what it should have; nil: nothing.
func (d *device) lacks(l link.Assignment) (missing []string) {
	switch {
	case d == nil:
		return []string{"the interface"}
	case !d.up:
		missing = append(missing, "the flag UP")
	case !d.carrier:
		missing = append(missing, "a carrier")
	}
	for _, p := range l.Addrs {
		switch {
		case slices.Contains(d.clashes, p):
			missing = append(missing, fmt.Sprintf("the address %v, which another host has", p))
		case !slices.Contains(d.addrs, p):
			missing = append(missing, fmt.Sprintf("the address %v", p))
		}
	}
	for _, r := range l.Routes {
		if !slices.Contains(d.routes, r) {
			missing = append(missing, fmt.Sprintf("the route %v", r))
		}
	}
	return missing
}

// await waits until an interface has everything that it should have.
func (p *pod) await(ctx context.Context, name string, l link.Assignment) (*device, error) {
	for {
		d, err := p.look(name)
		if err != nil {
			return nil, err
		}
		missing := d.lacks(l)
		if missing == nil {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s still lacks %s: %w", name, strings.Join(missing, ", "), context.Cause(ctx))
		case <-time.After(lookEvery):
		}
	}
}
