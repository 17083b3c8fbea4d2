package udp_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

func TestConformance(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	transporttest.Each(t, func(t *testing.T, test func(t *testing.T, a, b transporttest.Host)) {
		a, b := openPair(t, transporttest.MTU)
		test(t, a, b)
	})
}

// openPair creates two hosts joined by a veth pair, with a transport on each.
func openPair(t testing.TB, mtu int) (a, b transporttest.Host) {
	t.Helper()
	nsA, nsB := nstest.Pair(t, mtu)
	return openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
}

// openHost opens a transport on host i and waits until its link is up, because before
// that the kernel drops packets silently. The transport is closed at the end of the test.
func openHost(t testing.TB, ns *nstest.Namespace, i int, cfg udp.Config) transporttest.Host {
	t.Helper()
	cfg.Netdev = nstest.Dev
	tr := openIn(t, ns, cfg)
	waitState(t, tr, "the link to be up", func(s transport.State) bool { return s.Up })
	return transporttest.Host{
		Transport: tr,
		Underlay:  &admin{t, ns},
		IPv4:      netip.MustParseAddr(nstest.IPv4(i)),
		IPv6:      netip.MustParseAddr(nstest.IPv6(i)),
	}
}

func openIn(t testing.TB, ns *nstest.Namespace, cfg udp.Config) (tr *udp.Transport) {
	t.Helper()
	ns.Do(func() {
		var err error
		if tr, err = udp.Open(cfg); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// admin changes a host's netdev.
type admin struct {
	t  testing.TB
	ns *nstest.Namespace
}

func (a *admin) SetUp(on bool) {
	if on {
		a.do("set up", netlink.LinkSetUp)
	} else {
		a.do("set down", netlink.LinkSetDown)
	}
}

func (a *admin) SetMTU(mtu int) {
	a.do("set MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

func (a *admin) AddAddr(addr netip.Addr) {
	a.do("add address", func(l netlink.Link) error { return netlink.AddrAdd(l, hostAddr(addr)) })
}

func (a *admin) DelAddr(addr netip.Addr) {
	a.do("delete address", func(l netlink.Link) error { return netlink.AddrDel(l, hostAddr(addr)) })
}

func (a *admin) Remove() { a.do("delete", netlink.LinkDel) }

func hostAddr(addr netip.Addr) *netlink.Addr {
	ipNet := netlink.NewIPNet(addr.AsSlice())
	return &netlink.Addr{IPNet: ipNet, Flags: unix.IFA_F_NODAD}
}

func (a *admin) do(what string, f func(netlink.Link) error) {
	a.t.Helper()
	a.ns.Do(func() {
		l, err := netlink.LinkByName(nstest.Dev)
		if err == nil {
			err = f(l)
		}
		if err != nil {
			a.t.Errorf("%s: %v", what, err)
		}
	})
}
