package udp_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// routed returns a host's transport, and the address of another host behind a router whose second
// link has an MTU of 1400. The MTU of the host's netdev is 1500.
func routed(t *testing.T, ipv6 bool) (a *nstest.Namespace, tr *udp.Transport, src, dst netip.Addr) {
	t.Helper()
	a, r, b := nstest.New(t), nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, nstest.Dev, r, "left", 1500)
	nstest.Veth(t, b, nstest.Dev, r, "right", 1400)
	family, add := "-4", func(ns *nstest.Namespace, dev, addr string) { ns.Run("ip", "address", "add", addr, "dev", dev) }
	addrs := []string{"10.1.0.1/24", "10.1.0.254/24", "10.2.0.254/24", "10.2.0.1/24"}
	r.Run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	if ipv6 {
		family, add = "-6", func(ns *nstest.Namespace, dev, addr string) { ns.AddIPv6(dev, addr) }
		addrs = []string{"fd01::1/64", "fd01::fe/64", "fd02::fe/64", "fd02::1/64"}
	}
	add(a, nstest.Dev, addrs[0])
	add(r, "left", addrs[1])
	add(r, "right", addrs[2])
	add(b, nstest.Dev, addrs[3])
	p := func(i int) netip.Addr { return netip.MustParsePrefix(addrs[i]).Addr() }
	a.Run("ip", family, "route", "add", "default", "via", p(1).String())
	b.Run("ip", family, "route", "add", "default", "via", p(2).String())
	a.Do(func() {
		var err error
		if tr, err = udp.Open(udp.Config{Netdev: nstest.Dev}); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = tr.Close() })
	return a, tr, p(0), p(3)
}

// wantPath requires the MTU of a path, and of its route.
func wantPath(t *testing.T, when string, tr *udp.Transport, dst netip.Addr, path, route int) {
	t.Helper()
	if mtu, err := tr.PathMTU(dst); mtu != path || err != nil {
		t.Errorf("%s: the path to %s has MTU %d, %v, want %d", when, dst, mtu, err, path)
	}
	if mtu, err := tr.RouteMTU(dst); mtu != route || err != nil {
		t.Errorf("%s: the route to %s has MTU %d, %v, want %d", when, dst, mtu, err, route)
	}
}

// learn sends packets of 1500 bytes until the router's report has arrived.
func learn(t *testing.T, tr *udp.Transport, src, dst netip.Addr) {
	t.Helper()
	header := 28
	if dst.Is6() {
		header = 48
	}
	for end := time.Now().Add(transporttest.Patience); ; {
		pkt := transport.Packet{Src: src, Dst: dst, Data: make([]byte, 1500-header)}
		if _, err := tr.Send([]transport.Packet{pkt}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-tr.PathChanged():
			return
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("no report that a packet was too long")
		}
	}
}

// The MTU of a path follows the netdev, the route, and what routers report.
func TestPathMTU(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct {
		name, family, other string
		locked              int // what a path is said to carry if its route has a locked MTU of 1450
	}{{"IPv4", "-4", "10.3.0.1", 1450}, {"IPv6", "-6", "fd03::1", 1400}} { // IPv6 has no locks (__ip6_rt_update_pmtu, net/ipv6/route.c)
		t.Run(c.name, func(t *testing.T) {
			a, tr, src, dst := routed(t, c.name == "IPv6")
			gateway := netip.MustParseAddr(map[bool]string{false: "10.1.0.254", true: "fd01::fe"}[dst.Is6()]).String()
			other := netip.MustParseAddr(c.other)
			wantPath(t, "at first", tr, dst, 1500, 1500)
			if mtu, err := tr.PathMTU(src); mtu != 1500 || err != nil {
				t.Errorf("to this host: %d, %v, want the netdev's", mtu, err)
			}
			learn(t, tr, src, dst)
			wantPath(t, "after a report", tr, dst, 1400, 1500)
			wantPath(t, "after a report about another destination", tr, other, 1500, 1500)

			a.Run("ip", c.family, "route", "replace", "default", "via", gateway, "mtu", "1450")
			wantPath(t, "with a route of 1450", tr, other, 1450, 1450)
			a.Run("ip", c.family, "route", "replace", "default", "via", gateway, "mtu", "lock", "1450")
			for range 3 {
				learn(t, tr, src, dst)
			}
			wantPath(t, "with a locked route", tr, dst, c.locked, 1450)

			a.Run("ip", "link", "set", nstest.Dev, "mtu", "1300")
			for end := time.Now().Add(transporttest.Patience); tr.State().MTU != 1300 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			wantPath(t, "with a netdev of 1300", tr, dst, 1300, 1300)
			a.Run("ip", c.family, "route", "del", "default")
			if mtu, err := tr.PathMTU(dst); !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("without a route: %d, %v, want ENETUNREACH", mtu, err)
			}
			if _, err := tr.RouteMTU(dst); err == nil {
				t.Error("without a route: no error")
			}
		})
	}
}
