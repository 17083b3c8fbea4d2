package e2e

import (
	"testing"

	"ipoibd/link/linktest/nstest"
)

// Hosts that name each other with --peer reach each other across a router, also by
// multicast, whose copies are unicast packets.
func TestPeersAcrossARouter(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, router := hosts[0], hosts[1], hosts[2]
	const addrA, addrB = "10.1.0.1", "10.2.0.1"
	router.Run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf."+nstest.Dev+".send_redirects=0")
	router.Run("ip", "addr", "add", "10.1.0.254/24", "dev", nstest.Dev)
	router.Run("ip", "addr", "add", "10.2.0.254/24", "dev", nstest.Dev)
	ends := []struct {
		*host
		addr, peer, gateway string
	}{{a, addrA, addrB, "10.1.0.254"}, {b, addrB, addrA, "10.2.0.254"}}
	for _, end := range ends {
		end.Run("ip", "addr", "add", end.addr+"/24", "dev", nstest.Dev)
		end.Run("ip", "route", "add", end.peer, "via", end.gateway)
	}
	for _, end := range ends {
		end.join("--gid", end.addr, "--peer", end.peer)
	}
	pingAll(a, b)
	before := a.book() // with the errors of datagrams that b refused before its daemon had started
	pingAll(a, b)
	if n := a.book().since(before).of("hca_wire_icmp_errors"); n != 0 {
		t.Errorf("%d ICMP errors, want none", n)
	}
}
