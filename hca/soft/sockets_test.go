package soft_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// Runs the suite over UDP sockets. Each test gets two new namespaces joined by a veth
// pair.
func TestConformanceOverSockets(t *testing.T) {
	for _, u := range []struct {
		name  string
		addr  func(host int) string
		group netip.Addr
		lanes int
	}{{"IPv4", nstest.IPv4, group4, 1}, {"IPv6", nstest.IPv6, group6, 1}, {"IPv4, 4 lanes", nstest.IPv4, group4, 4}} {
		t.Run(u.name, func(t *testing.T) {
			if nstest.Enter(t) {
				return
			}
			h := underlay{group: u.group}.harness()
			h.In = nil
			h.Open = func(t *testing.T) (a, b hcatest.Host) {
				nsA, nsB := nstest.Pair(t, 1500)
				return socketHost(t, nsA, u.addr(0), u.lanes), socketHost(t, nsB, u.addr(1), u.lanes)
			}
			hcatest.Run(t, h)
		})
	}
}

// socketHost opens a device on a namespace's netdev.
func socketHost(t *testing.T, ns *nstest.Namespace, addr string, lanes int) hcatest.Host {
	t.Helper()
	var dev *soft.Device
	ns.Do(func() {
		all, err := udp.OpenLanes(udp.Config{Netdev: nstest.Dev, Lanes: lanes})
		if err != nil {
			t.Fatal(err)
		}
		cfg := soft.Config{Name: "soft", Transport: all[0], PKeys: []hca.PKey{hca.PKeyDefault, 0x8001}}
		for _, more := range all[1:] {
			cfg.More = append(cfg.More, more)
		}
		if dev, err = soft.Open(cfg); err != nil {
			t.Fatal(err)
		}
	})
	h := hcatest.Host{
		Dev: dev, Port: 1, SGIDIndex: gidIndex(t, dev, addr),
		AddGID:    func() { admin(t, ns, func(l netlink.Link) error { return netlink.AddrAdd(l, newAddr(t)) }) },
		RemoveDev: func() { admin(t, ns, netlink.LinkDel) },
	}
	if netip.MustParseAddr(addr).Is4() { // setting a link down removes its IPv6 addresses
		h.SetLink = func(up bool) { setLink(t, ns, up) }
	}
	return h
}

func gidIndex(t *testing.T, dev *soft.Device, addr string) int {
	t.Helper()
	p, err := dev.QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	want := hca.GIDFromAddr(netip.MustParseAddr(addr))
	i := slices.IndexFunc(p.GIDs, func(e hca.GIDEntry) bool { return e.GID == want })
	if i < 0 {
		t.Fatalf("no GID %v in %+v", want, p.GIDs)
	}
	return i
}

func newAddr(t *testing.T) *netlink.Addr {
	a, err := netlink.ParseAddr("10.9.9.9/32")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func setLink(t *testing.T, ns *nstest.Namespace, up bool) {
	if up {
		admin(t, ns, netlink.LinkSetUp)
	} else {
		admin(t, ns, netlink.LinkSetDown)
	}
}

// admin changes a namespace's netdev.
func admin(t *testing.T, ns *nstest.Namespace, change func(netlink.Link) error) {
	t.Helper()
	ns.Do(func() {
		l, err := netlink.LinkByName(nstest.Dev)
		if err == nil {
			err = change(l)
		}
		if err != nil {
			t.Error(err)
		}
	})
}
