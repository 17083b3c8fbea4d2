package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Two hosts with several lanes each, not always the same number, exchange pings, TCP over several
// streams both ways, and multicast, and account for every frame. One of them then continues
// with another number of lanes on the same interface.
func TestLanes(t *testing.T) {
	for _, lanes := range [][2]int{{2, 2}, {4, 4}, {4, 1}} {
		t.Run(fmt.Sprintf("%d_and_%d", lanes[0], lanes[1]), func(t *testing.T) {
			if nstest.Enter(t) {
				return
			}
			hosts := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			for i, h := range hosts {
				h.join("--lanes", strconv.Itoa(lanes[i]))
				if n := h.iface().Lanes; n != lanes[i] {
					t.Errorf("host %d: the status shows %d lanes", i, n)
				}
			}
			bothWays(t, a, b)
			for i, k := range rest(t, a, b) {
				hosts[i].checkDaemon(k)
			}
			a.wantLanes(lanes[0])
			b.wantLanes(lanes[1])

			a.daemon.stop()
			a.start("--lanes", "2")
			a.waitCarrier()
			b.waitReaches(a)
			a.wantLanes(2)
			if is := a.iface(); is.Lanes != 2 || !is.Adopted {
				t.Errorf("after the restart: %d lanes, adopted %v", is.Lanes, is.Adopted)
			}
			before := rest(t, a, b)
			bothWays(t, a, b)
			for i, k := range rest(t, a, b) {
				hosts[i].checkDaemon(k.since(before[i]))
			}
		})
	}
}

// bothWays sends pings and TCP over several streams both ways.
func bothWays(t *testing.T, a, b *host) {
	t.Helper()
	pingAll(a, b)
	for _, dst := range []string{b.ip4(), b.ip6()} {
		for _, way := range [][]string{nil, {"--reverse"}} {
			a.iperf3(b, append([]string{"--client", dst, "--parallel", "4", "--bytes", "8M"}, way...)...)
		}
	}
	a.Run("ping", "-n", "-q", "-f", "-c", "300", b.ip4())
}

// iperf3 runs a client against a server on another host, and returns what the client prints. The server ends with
// the client, since one that goes on refuses the next client for a moment.
func (h *host) iperf3(other *host, client ...string) (out string) {
	h.tb.Helper()
	server := other.Command("iperf3", "--server", "--one-off")
	if err := server.Start(); err != nil {
		h.tb.Fatalf("start iperf3: %v", err)
	}
	eventually(h.tb, startLimit, "iperf3 listens", func() bool { return strings.Contains(other.Run("ss", "-Hltn", "sport = 5201"), "5201") })
	out = h.Run("iperf3", client...)
	if err := server.Wait(); err != nil {
		h.tb.Fatalf("iperf3's server: %v", err)
	}
	return out
}

// wantLanes checks the queues of the interface and the sockets of the underlay.
func (h *host) wantLanes(n int) {
	h.tb.Helper()
	if sockets := strings.Count(h.Run("ss", "-Hun", "-a", "sport = 4791"), "4791"); sockets != n {
		h.tb.Errorf("host %d: %d sockets receive, want %d", h.number, sockets, n)
	}
	if out := h.Run("ip", "-details", "link", "show", ifName); !strings.Contains(out, fmt.Sprintf("numqueues %d ", n)) {
		h.tb.Errorf("host %d: want %d queues of %s: %s", h.number, n, ifName, out)
	}
}

// idleLimit is how much CPU time an idle daemon may use per second. It is ten times what one
// with four lanes has used.
const idleLimit = 50 * time.Millisecond

// A daemon with four lanes that carries no traffic uses little CPU time.
func TestIdleLanes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	for _, h := range hosts {
		h.join("--lanes", "4")
	}
	pingAll(hosts...)
	rest(t, hosts...)
	const interval = 4 * time.Second
	before, start := hosts[0].cpu(), time.Now()
	time.Sleep(interval)
	used := time.Duration(float64(hosts[0].cpu()-before) / time.Since(start).Seconds())
	t.Logf("an idle daemon with 4 lanes uses %v of CPU time per second", used)
	if used > idleLimit {
		t.Errorf("an idle daemon with 4 lanes uses %v of CPU time per second, more than %v", used, idleLimit)
	}
}
