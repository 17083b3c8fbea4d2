package infiniband

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// The daemon and the kernel's IPoIB reach each other on a subnet of OpenSM. The daemon runs on Linux 6.1 and then on
// 6.12, the peer on the other; the long form has all parts on both.
func TestDaemonAndKernelIPoIB(t *testing.T) {
	guest.Require(t)
	guest.KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		all := series == kernel.Newest || guest.Soak()
		host := member{series: series}
		if all { // counted for the faults, which have goals of time
			host.programs, host.counted = dhcpPrograms, true
		}
		p := bootPair(t, host, sm.Spec{})
		p.startDaemon(t, "--device", "ibwire0", "--name", "ib0", "--allow-faults")
		const net0 network = 0
		for i := range p.guests {
			p.up(t, i, "ib0", net0)
		}
		p.WaitMembers(p.Group(broadcastGroup).MLID, ours, theirs)
		for _, test := range []struct {
			name string
			run  func(*testing.T, network)
			// oneKernel: the version of the kernel hardly matters
			oneKernel bool
		}{
			{"packets as long as the MTU", p.requireReached, false},
			{"neighbours have 20-byte addresses", p.requireNeighbours, false},
			{"streams, and datagrams without loss", p.requireTraffic, false},
			{"multicast", p.requireMulticast, false},
			{"failures end", p.requireOutagesEnd, true},
			{"faults of the HCA are repaired", p.requireFaultsRepaired, true},
			{"namespaces behind a bridge", p.requireBridge, true},
			{"DHCP", p.requireDHCP, true},
			{"an interface of the kernel on the same port", p.requireKernelInterface, true},
		} {
			if !test.oneKernel || all {
				t.Run(test.name, func(t *testing.T) { test.run(t, net0) })
			}
		}
		for i, g := range p.guests {
			c := p.Counters(i)
			t.Logf("host %d: %+v", i, c)
			if c.Global != 0 {
				t.Errorf("host %d: %d unicast packets with a GRH, want none", i, c.Global)
			}
			requireQuietKernel(t, g)
		}
	})
}

// requireNeighbours requires that the kernel knows the daemon by its 20-byte address, and that the daemon and its
// host know the kernel.
func (p *pair) requireNeighbours(t *testing.T, n network) {
	status := p.status(t, "ib0")
	if gid := p.GID(ours); !strings.HasSuffix(status.QP.Address, colons(gid[:])) {
		t.Errorf("the daemon's address is %s, want one with the GID %v", status.QP.Address, gid)
	}
	for _, ip := range []string{n.ip4(ours), n.ip6(ours)} {
		entry := p.guests[theirs].Run("ip", "neigh", "show", ip, "dev", "ib0")
		if !strings.Contains(entry, status.QP.Address) {
			t.Errorf("the kernel's neighbour entry of %s is %q, want one with %s", ip, entry, status.QP.Address)
		}
	}
	address, err := net.ParseMAC(read(p.guests[theirs], "/sys/class/net/ib0/address"))
	if err != nil || len(address) != 20 {
		t.Fatalf("the kernel's address: %v, %v", address, err)
	}
	gid, qpn := p.GID(theirs).String(), fmt.Sprintf("0x%x", []byte(address[1:4]))
	text := p.guests[ours].Run("ipoibd", "status", "-v")
	if !strings.Contains(text, gid) || !strings.Contains(text, qpn) {
		t.Errorf("the daemon's status lacks the GID %s or the QPN %s:\n%s", gid, qpn, text)
	}
	if len(status.Peers) != 1 {
		t.Fatalf("the daemon's peers are %+v, want one", status.Peers)
	}
	peer := status.Peers[0]
	if peer.GID != gid || peer.QPN != qpn {
		t.Errorf("the daemon's peer is %+v, want GID %s and QPN %s", peer, gid, qpn)
	}
	for _, ip := range []string{n.ip4(theirs), n.ip6(theirs)} {
		if !slices.Contains(peer.IPs, ip) {
			t.Errorf("the daemon's peer has the addresses %v, want %s among them", peer.IPs, ip)
		}
		if entry := p.guests[ours].Run("ip", "neigh", "show", ip, "dev", "ib0"); !strings.Contains(entry, peer.MAC) {
			t.Errorf("the neighbour entry of %s on the daemon's host is %q, want one with MAC %s", ip, entry, peer.MAC)
		}
	}
}

// colons returns bytes as `ip` prints them.
func colons(b []byte) string { return net.HardwareAddr(b).String() }

// requireBridge makes the daemon's ib0 a port of a bridge, with three network namespaces behind it. Each of them and
// the kernel's host reach each other.
func (p *pair) requireBridge(t *testing.T, n network) {
	const namespaces, first = 3, 10
	g := p.guests[ours]
	var script strings.Builder
	script.WriteString("ip addr flush dev ib0\n" +
		"ip link add br0 type bridge\n" +
		"ip link set ib0 master br0\n" +
		"ip link set br0 up\n")
	for i := range namespaces {
		ip := []any{i, n.ip4(first + i), n.ip6(first + i), mtu}
		fmt.Fprintf(&script, "ip netns add n%[1]d\n"+
			"ip link add v%[1]d mtu %[4]d type veth peer name eth0 mtu %[4]d netns n%[1]d\n"+
			"ip link set v%[1]d master br0 up\n"+
			"ip -n n%[1]d addr add %[2]s/24 dev eth0\n"+
			"ip -n n%[1]d addr add %[3]s/64 dev eth0 nodad\n"+
			"ip -n n%[1]d link set eth0 up\n", ip...)
	}
	g.Run("sh", "-ec", script.String())
	ping := func(to string) []string {
		return []string{"ping", "-n", "-q", "-c", "5", "-i", "0.2", "-W", "10", "-M", "do", "-s", "1900", to}
	}
	var pings []*guest.Process
	for i := range namespaces {
		for _, to := range []string{n.ip4(first + i), n.ip6(first + i)} {
			pings = append(pings, p.guests[theirs].Start("ping", ping(to)[1:]...))
		}
	}
	requireSuccess(t, pings) // before the namespaces have sent anything
	pings = nil
	for i := range namespaces {
		for _, to := range []string{n.ip4(theirs), n.ip6(theirs)} {
			pings = append(pings, g.Start("ip", append([]string{"netns", "exec", fmt.Sprintf("n%d", i)}, ping(to)...)...))
		}
	}
	requireSuccess(t, pings)
}

// requireSuccess waits for processes, and requires that they exit with 0.
func requireSuccess(t *testing.T, processes []*guest.Process) {
	t.Helper()
	for i, p := range processes {
		if result := p.Wait(carrierLimit); !result.OK() {
			t.Errorf("process %d: %v\n%s%s", i, result, p.Stdout(), p.Stderr())
		}
	}
}
