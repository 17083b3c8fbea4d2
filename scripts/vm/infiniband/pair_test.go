package infiniband

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// The hosts of a pair: the daemon runs on the first, the kernel's IPoIB on the second.
const ours, theirs = 0, 1

// pair is two guests on a subnet. Their interfaces are ib0, and those that a test adds.
type pair struct {
	*sm.Subnet
	guests []*guest.Guest
	args   []string // of the daemon
	daemon *guest.Process
}

// bootPair boots a guest for the daemon, and a peer with the other kernel and the same programs.
func bootPair(t *testing.T, daemon member, spec sm.Spec) *pair {
	t.Helper()
	peer := member{series: kernel.Oldest, hosts: []int{theirs}, programs: daemon.programs}
	if daemon.series == peer.series {
		peer.series = kernel.Newest
	}
	spec.Hosts = 2
	p := &pair{Subnet: sm.Start(t, spec)}
	daemon.hosts = []int{ours}
	p.guests = boot(t, p.Subnet, daemon, peer)
	t.Cleanup(func() {
		if t.Failed() && p.daemon != nil {
			t.Logf("the daemon:\n%s", p.daemon.Stderr())
		}
	})
	for _, g := range p.guests {
		g.Run("sysctl", "-q", "-w", "net.core.rmem_max="+socketBuffer, "net.core.rmem_default="+socketBuffer,
			"net.ipv4.icmp_echo_ignore_broadcasts=0")
	}
	return p
}

// startDaemon replaces the kernel's IPoIB of the first guest by the daemon, with arguments of `ipoibd run`.
func (p *pair) startDaemon(t *testing.T, args ...string) {
	t.Helper()
	p.guests[ours].Run("rmmod", "ib_ipoib")
	p.args = append([]string{"run", "--log-level", "debug"}, args...)
	p.restartDaemon(t)
}

// restartDaemon starts the daemon as before.
func (p *pair) restartDaemon(t *testing.T) {
	t.Helper()
	g := p.guests[ours]
	p.daemon = g.Start("ipoibd", p.args...)
	waitAnswers(t, g, p.daemon)
}

// waitAnswers waits until a daemon answers `ipoibd status` with arguments.
func waitAnswers(t *testing.T, g *guest.Guest, daemon *guest.Process, args ...string) {
	t.Helper()
	eventually(t, carrierLimit, "the daemon answers", func() bool {
		select {
		case <-daemon.Exited():
			t.Fatalf("the daemon has ended\n%s", daemon.Stderr())
		default:
		}
		return g.Try("ipoibd", append([]string{"status"}, args...)...)
	})
}

// up sets an interface of a guest up, waits until it is in its partition's broadcast group, and assigns the addresses
// of a network to it.
func (p *pair) up(t *testing.T, host int, dev string, n network) {
	t.Helper()
	g := p.guests[host]
	g.Run("ip", "link", "set", dev, "up")
	waitFor(t, g, "/sys/class/net/"+dev+"/carrier", "1")
	if got := read(g, "/sys/class/net/"+dev+"/mtu"); got != fmt.Sprint(mtu) {
		t.Errorf("host %d: MTU %s of %s, want %d", host, got, dev, mtu)
	}
	g.Run("ip", "addr", "add", n.ip4(host)+"/24", "dev", dev)
	g.Run("ip", "addr", "add", n.ip6(host)+"/64", "dev", dev, "nodad")
}

// network is an IPv4 and an IPv6 network, by its number.
type network int

func (n network) ip4(host int) string { return fmt.Sprintf("10.44.%d.%d", n, host+1) }
func (n network) ip6(host int) string { return fmt.Sprintf("fd44:%d::%d", n+1, host+1) }
func (n network) broadcast() string   { return fmt.Sprintf("10.44.%d.255", n) }

// mtu is that of the interfaces, in bytes: that of ibsim's ports less the IPoIB header.
const mtu = 2048 - 4

// requireReached requires that the hosts of a pair reach each other in a network.
func (p *pair) requireReached(t *testing.T, n network) {
	t.Helper()
	p.requireEchoes(t, n.ip4, mtu-28)
	p.requireEchoes(t, n.ip6, mtu-48)
}

// requireEchoes requires that the hosts of a pair answer each other's echo requests, first the daemon's host: short
// ones, and the longest that fit the MTU.
func (p *pair) requireEchoes(t *testing.T, address func(host int) string, longest int) {
	t.Helper()
	for i, g := range p.guests {
		for _, size := range []int{56, longest} {
			g.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "10", "-M", "do", "-s", fmt.Sprint(size), address(1-i))
		}
	}
}

// interfaceStatus is what these tests use of an interface in `ipoibd status --json`.
type interfaceStatus struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
	QP     *struct {
		Address string `json:"address"`
	} `json:"qp"`
	Peers []struct {
		MAC string   `json:"mac"`
		GID string   `json:"gid"`
		QPN string   `json:"qpn"`
		IPs []string `json:"ips"`
	} `json:"peers"`
	Counters map[string]int `json:"counters"`
}

// status returns the daemon's view of an interface that has a queue pair.
func (p *pair) status(t *testing.T, dev string) interfaceStatus {
	t.Helper()
	out := p.guests[ours].Run("ipoibd", "status", "--json")
	s := statusOf(t, out, dev)
	if s.QP == nil {
		t.Fatalf("%s has no queue pair in\n%s", dev, out)
	}
	return s
}

// statusOf returns an interface in the output of `ipoibd status --json`.
func statusOf(t *testing.T, out, dev string) interfaceStatus {
	t.Helper()
	var s struct {
		Interfaces []interfaceStatus `json:"interfaces"`
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("ipoibd status: %v\n%s", err, out)
	}
	for _, f := range s.Interfaces {
		if f.Name == dev {
			return f
		}
	}
	t.Fatalf("%s is missing in\n%s", dev, out)
	return interfaceStatus{}
}

// eventually polls until ok, and returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	if !nstest.Poll(limit, ok) {
		t.Fatalf("%s: not within %v", what, limit)
	}
	return time.Since(start)
}

// waitPrints waits until a process has written a text to its standard output.
func waitPrints(t *testing.T, p *guest.Process, text string) {
	t.Helper()
	eventually(t, carrierLimit, fmt.Sprintf("it says %q", text), func() bool { return strings.Contains(p.Stdout(), text) })
}
