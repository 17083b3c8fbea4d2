package udp

import (
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

func linkAttrs(edit func(*netlink.LinkAttrs)) *netlink.LinkAttrs {
	l := &netlink.LinkAttrs{
		Name: "eth0", Index: 7, MTU: 1500, Flags: net.FlagUp, OperState: netlink.OperUp,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7},
	}
	edit(l)
	return l
}

func listed(cidr string, flags int) netlink.Addr {
	ip, ipNet, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	ipNet.IP = ip
	return netlink.Addr{IPNet: ipNet, Flags: flags}
}

func TestStateOfLink(t *testing.T) {
	base := transport.State{Name: "eth0", Index: 7, Present: true, Up: true, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 7}}
	with := func(edit func(*transport.State)) transport.State {
		s := base
		edit(&s)
		return s
	}
	down := with(func(s *transport.State) { s.Up = false })
	oper := func(o netlink.LinkOperState) func(*netlink.LinkAttrs) {
		return func(l *netlink.LinkAttrs) { l.OperState = o }
	}
	tests := []struct {
		name string
		edit func(*netlink.LinkAttrs)
		want transport.State
	}{
		{"up", func(*netlink.LinkAttrs) {}, base},
		{"no operational state", oper(netlink.OperUnknown), base},
		{"no carrier", oper(netlink.OperDown), down},
		{"no carrier below", oper(netlink.OperLowerLayerDown), down},
		{"dormant", oper(netlink.OperDormant), down},
		{"testing", oper(netlink.OperTesting), down},
		{"not present", oper(netlink.OperNotPresent), down},
		{"set down", func(l *netlink.LinkAttrs) { l.Flags = 0 }, down},
		{"MTU", func(l *netlink.LinkAttrs) { l.MTU = 9000 }, with(func(s *transport.State) { s.MTU = 9000 })},
		{"renamed", func(l *netlink.LinkAttrs) { l.Name = "eth1" }, with(func(s *transport.State) { s.Name = "eth1" })},
		{"no MAC", func(l *netlink.LinkAttrs) { l.HardwareAddr = nil }, with(func(s *transport.State) { s.MAC = [6]byte{} })},
		{"long MAC", func(l *netlink.LinkAttrs) { l.HardwareAddr = make(net.HardwareAddr, 20) }, with(func(s *transport.State) { s.MAC = [6]byte{} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := stateOf(linkAttrs(tt.edit), nil); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("stateOf = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestStateOfAddrs(t *testing.T) {
	tests := []struct {
		name  string
		addrs []netlink.Addr
		want  []string
	}{
		{"none", nil, nil},
		{"order", []netlink.Addr{
			listed("2001:db8::1/64", 0), listed("10.0.0.1/8", 0), listed("fe80::1/64", 0),
		}, []string{"fe80::1", "10.0.0.1", "2001:db8::1"}},
		{"kernel's order within a class", []netlink.Addr{
			listed("10.0.0.9/8", 0), listed("10.0.0.1/8", unix.IFA_F_SECONDARY), listed("fd00::2/64", 0), listed("fd00::1/64", 0),
		}, []string{"10.0.0.9", "10.0.0.1", "fd00::2", "fd00::1"}},
		{"IPv4 link-local is IPv4", []netlink.Addr{
			listed("169.254.1.1/16", 0), listed("fe80::1/64", 0),
		}, []string{"fe80::1", "169.254.1.1"}},
		{"tentative", []netlink.Addr{listed("fe80::1/64", unix.IFA_F_TENTATIVE)}, nil},
		{"optimistic", []netlink.Addr{listed("fe80::1/64", unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC)}, nil},
		{"duplicate", []netlink.Addr{listed("fe80::1/64", unix.IFA_F_DADFAILED)}, nil},
		{"deprecated", []netlink.Addr{listed("fe80::1/64", unix.IFA_F_DEPRECATED)}, []string{"fe80::1"}},
		{"without address", []netlink.Addr{{}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := stateOf(linkAttrs(func(*netlink.LinkAttrs) {}), tt.addrs).Addrs
			if want := parseAddrs(tt.want); !slices.Equal(got, want) {
				t.Errorf("addresses %v, want %v", got, want)
			}
		})
	}
}

func parseAddrs(text []string) (addrs []netip.Addr) {
	for _, s := range text {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
}

func TestGone(t *testing.T) {
	s := stateOf(linkAttrs(func(*netlink.LinkAttrs) {}), []netlink.Addr{listed("fe80::1/64", 0)})
	g := gone(s)
	if g.Present || g.Up || g.Addrs != nil || g.Name != "eth0" || g.Index != 7 {
		t.Errorf("gone = %+v, want only name and index", g)
	}
	if len(s.Addrs) != 1 {
		t.Error("gone changed its argument")
	}
}
