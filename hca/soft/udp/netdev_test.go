package udp

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

func device(index int, name string, flags net.Flags) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name, Flags: flags}}
}

func tap(index int, name string) netlink.Link {
	return &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Index: index, Name: name, Flags: net.FlagUp},
		Mode:      netlink.TUNTAP_MODE_TAP,
	}
}

func route(family, index, metric int) netlink.Route {
	return netlink.Route{Family: family, LinkIndex: index, Priority: metric}
}

func TestChooseNetdev(t *testing.T) {
	lo := device(1, "lo", net.FlagUp|net.FlagLoopback)
	eth0, eth1 := device(2, "eth0", net.FlagUp), device(3, "eth1", net.FlagUp)
	idle, ib0 := device(4, "eth2", 0), tap(5, "ib0")
	const v4, v6 = unix.AF_INET, unix.AF_INET6
	two := []netlink.Link{lo, eth0, eth1, idle, ib0}
	multipath := netlink.Route{Family: v4, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 3}}}
	tests := []struct {
		name   string
		links  []netlink.Link
		routes []netlink.Route
		want   string // empty: an error that contains text
		text   string
	}{
		{"default route", two, []netlink.Route{route(v4, 3, 0)}, "eth1", ""},
		{"lower metric", two, []netlink.Route{route(v4, 3, 100), route(v4, 2, 50)}, "eth0", ""},
		{"IPv4 first", two, []netlink.Route{route(v6, 3, 0), route(v4, 2, 50)}, "eth0", ""},
		{"IPv6 only", two, []netlink.Route{route(v6, 3, 1024)}, "eth1", ""},
		{"multipath", two, []netlink.Route{multipath}, "eth1", ""},
		{"through our TAP", two, []netlink.Route{route(v4, 5, 0), route(v4, 2, 50)}, "eth0", ""},
		{"the only one", []netlink.Link{lo, eth1, idle, ib0}, nil, "eth1", ""},
		{"several", two, nil, "", "eth0, eth1"},
		{"none", []netlink.Link{lo, idle, ib0}, nil, "", "only loopback and TAPs are up"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := chooseNetdev(tt.links, tt.routes)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("chose %q, %v, want %q", got, err, tt.want)
			}
			if err != nil && (!errors.Is(err, hca.ErrNoDevice) || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("error %q, want one with %q that wraps ErrNoDevice", err, tt.text)
			}
		})
	}
}
