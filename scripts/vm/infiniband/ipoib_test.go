package infiniband

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/ibwire"
	"ipoibd/scripts/vm/kernel"
)

// ib0Addr is the IPv4 address of guest i on the InfiniBand subnet.
func ib0Addr(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }

// broadcastGroup is the IPv4 broadcast group of the default partition (RFC 4391, section 4).
var broadcastGroup = hca.GIDFromAddr(netip.MustParseAddr("ff12:401b:ffff::ffff:ffff"))

// Two guests with the kernel's own IPoIB, one of each series, reach each other over IPv4 and IPv6 on an InfiniBand
// subnet. OpenSM assigns their LIDs and puts them into groups. A third host receives packets of groups only after it
// has joined.
func TestKernelIPoIB(t *testing.T) {
	guest.Require(t)
	const stranger, sender = 2, 3
	s := sm.Start(t, sm.Spec{Hosts: 4})
	third := s.NewHost(stranger)
	guests := boot(t, s, member{series: kernel.Oldest, hosts: []int{0}}, member{series: kernel.Newest, hosts: []int{1}})
	for i, g := range guests {
		g.Run("ip", "addr", "add", ib0Addr(i)+"/24", "dev", "ib0")
		g.Run("ip", "link", "set", "ib0", "up")
	}
	var ip6 [2]string
	for i, g := range guests {
		waitFor(t, g, "/sys/class/net/ib0/carrier", "1")
		requirePort(t, s, i, g)
		ip6[i] = linkLocal(t, g, "ib0")
	}
	for i, g := range guests {
		for _, to := range []string{ib0Addr(1 - i), ip6[1-i] + "%ib0"} {
			for _, size := range []string{"56", "1900"} {
				g.Run("ping", "-c", "3", "-i", "0.2", "-W", "10", "-s", size, to)
			}
		}
		t.Logf("host %d: %+v", i, s.Counters(i))
	}
	for i, g := range guests {
		if c := s.Counters(i); c.Global != 0 || c.Multicast == 0 || c.Requests == 0 {
			t.Errorf("host %d: %+v, want requests, packets of groups, and no unicast packet with a GRH", i, c)
		}
		if groups := g.Run("cat", "/sys/kernel/debug/ipoib/ib0_mcg"); !strings.Contains(groups, "ff12:401b:ffff:0:0:0:ffff:ffff") {
			t.Errorf("host %d is not in the broadcast group:\n%s", i, groups)
		}
	}

	group := s.Group(broadcastGroup)
	s.WaitMembers(group.MLID, 0, 1)
	fourth := s.NewHost(sender)
	to := func(lid uint16, text string) {
		fourth.Send(&ibwire.Packet{
			SLID: s.Port(sender).LID, DLID: lid, Global: true, SGID: s.GID(sender), DGID: group.MGID, PKey: group.PKey,
			DestQPN: hca.QPNMulticast, SrcQPN: 1 << 8, QKey: 0, Payload: []byte(text), // a Q_Key that the guests refuse
		})
	}
	to(group.MLID, "to members")
	to(s.Port(stranger).LID, "to the third host")
	if got := third.Receive(); string(got.Payload) != "to the third host" {
		t.Errorf("a host that has not joined received %+v", got)
	}
	s.Join(stranger, group)
	s.WaitMembers(group.MLID, 0, 1, stranger)
	to(group.MLID, "to more members")
	for string(third.Receive().Payload) != "to more members" {
	} // the guests may send to the group as well
	for _, g := range guests {
		requireQuietKernel(t, g)
	}
}

// requirePort compares a guest's HCA with its port of the subnet.
func requirePort(t *testing.T, s *sm.Subnet, i int, g *guest.Guest) {
	t.Helper()
	port := s.Port(i)
	want := map[string]string{
		"link_layer": "InfiniBand", "state": "4: ACTIVE", "phys_state": "5: LinkUp",
		"lid": fmt.Sprintf("%#x", port.LID), "sm_lid": fmt.Sprintf("%#x", port.SMLID), "pkeys/0": fmt.Sprintf("%#x", uint16(port.PKeys[0])),
	}
	for name, value := range want {
		if got := read(g, "/sys/class/infiniband/ibwire0/ports/1/"+name); got != value {
			t.Errorf("host %d: %s of its port is %s, want %s", i, name, got, value)
		}
	}
	if mtu := read(g, "/sys/class/net/ib0/mtu"); mtu != "2044" {
		t.Errorf("host %d: MTU %s of ib0, want that of the group less 4", i, mtu)
	}
}

// linkLocal returns the link-local IPv6 address of an interface.
func linkLocal(t *testing.T, g *guest.Guest, dev string) string {
	t.Helper()
	fields := strings.Fields(g.Run("ip", "-6", "-o", "addr", "show", "dev", dev, "scope", "link"))
	for i, f := range fields[:max(0, len(fields)-1)] {
		if f == "inet6" {
			addr, _, _ := strings.Cut(fields[i+1], "/")
			return addr
		}
	}
	t.Fatalf("%s has no link-local address: %q", dev, fields)
	return ""
}
