package nstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dev is the name of the interface that [Pair] and [Switch] give each host.
const Dev = "eth0"

// IPv4 returns the address of host i, counted from 0, of [Pair] and [Switch]
// (RFC 5737, TEST-NET-1).
func IPv4(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }

// IPv6 returns the IPv6 address of host i (RFC 3849).
func IPv6(i int) string { return fmt.Sprintf("2001:db8::%x", i+1) }

// Veth connects two namespaces by a veth pair, with both ends up. The MTU is in bytes. It
// returns when both ends send frames.
func Veth(tb testing.TB, a *Namespace, nameA string, b *Namespace, nameB string, mtu int) {
	tb.Helper()
	a.Do(func() {
		must(tb, "add veth", netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: nameA, MTU: mtu},
			PeerName:      nameB,
			PeerMTU:       uint32(mtu),
			PeerNamespace: netlink.NsFd(b.file.Fd()),
		}))
	})
	a.setUp(nameA)
	b.setUp(nameB)
	a.WaitOperational(nameA)
	b.WaitOperational(nameB)
}

const (
	operationalLimit = 10 * time.Second // of the waits for the kernel; immediate on an idle machine
	operationalPoll  = time.Millisecond
)

// WaitOperational waits until an interface with carrier is operational. The kernel makes it
// so a little later, and drops frames until then (linkwatch_do_dev,
// net/core/link_watch.c).
func (ns *Namespace) WaitOperational(name string) {
	ns.tb.Helper()
	ns.Do(func() {
		for end := time.Now().Add(operationalLimit); ; time.Sleep(operationalPoll) {
			link, err := netlink.LinkByName(name)
			must(ns.tb, "find "+name, err)
			if link.Attrs().OperState == netlink.OperUp {
				return
			}
			if time.Now().After(end) {
				ns.tb.Fatalf("%s is %s after %v", name, link.Attrs().OperState, operationalLimit)
			}
		}
	})
}

// Pair creates two namespaces connected by a veth pair with the given MTU. [Dev] in
// each has the addresses [IPv4] and [IPv6] of host 0 or 1, usable at once.
func Pair(tb testing.TB, mtu int) (a, b *Namespace) {
	tb.Helper()
	a, b = New(tb), New(tb)
	Veth(tb, a, Dev, b, Dev, mtu)
	a.addAddrs(0)
	b.addAddrs(1)
	return a, b
}

// Switch creates n namespaces, at most 250, on one [Segment] with the given MTU. Their
// addresses belong to hosts 0 to n-1.
func Switch(tb testing.TB, n, mtu int) []*Namespace {
	tb.Helper()
	segment := NewSegment(tb, mtu)
	hosts := make([]*Namespace, n)
	for i := range hosts {
		hosts[i] = segment.Host(i)
	}
	return hosts
}

func (ns *Namespace) setUp(name string) {
	ns.tb.Helper()
	ns.Do(func() {
		link, err := netlink.LinkByName(name)
		must(ns.tb, "find "+name, err)
		must(ns.tb, "set "+name+" up", netlink.LinkSetUp(link))
	})
}

// addAddrs adds the addresses of host i to Dev.
func (ns *Namespace) addAddrs(i int) {
	ns.tb.Helper()
	ns.Do(func() {
		link, err := netlink.LinkByName(Dev)
		must(ns.tb, "find "+Dev, err)
		addr, err := netlink.ParseAddr(IPv4(i) + "/24")
		must(ns.tb, "parse "+IPv4(i), err)
		must(ns.tb, "add "+IPv4(i), netlink.AddrAdd(link, addr))
	})
	ns.AddIPv6(Dev, IPv6(i)+"/64")
}

// AddIPv6 adds an address to an interface that may already have it. It skips duplicate address
// detection, which would make the address unusable for a second. It returns when packets to the
// address reach sockets: the kernel inserts the route of the address a little later, and drops
// them until then, although it answers neighbour solicitations (addrconf_dad_work,
// net/ipv6/addrconf.c).
func (ns *Namespace) AddIPv6(name, cidr string) {
	ns.tb.Helper()
	ns.Do(func() {
		link, err := netlink.LinkByName(name)
		must(ns.tb, "find "+name, err)
		addr, err := netlink.ParseAddr(cidr)
		must(ns.tb, "parse "+cidr, err)
		addr.Flags = unix.IFA_F_NODAD
		must(ns.tb, "add "+cidr, netlink.AddrReplace(link, addr))
		for end := time.Now().Add(operationalLimit); ; time.Sleep(operationalPoll) {
			routes, err := netlink.RouteGet(addr.IP)
			if err == nil && routes[0].Type == unix.RTN_LOCAL {
				return
			}
			if time.Now().After(end) {
				ns.tb.Fatalf("%s of %s is not a local address after %v: %v, %v",
					cidr, name, operationalLimit, routes, err)
			}
		}
	})
}

func must(tb testing.TB, what string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
}
