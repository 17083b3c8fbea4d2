package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	ifName      = "ib0" // the interface of every host
	underlayMTU = 1500  // of the segment that joins them
)

// repairLimit is ten times the second within which a host should be reachable
// again after a fault.
const repairLimit = 10 * time.Second

// host is a namespace with a daemon. Its addresses are derived from its number,
// which starts at 0.
type host struct {
	*nstest.Namespace
	tb     testing.TB
	number int
	dir    string
	daemon *daemon

	other string // the program of another version, to which every second hand-over goes
}

// in returns the host for a subtest: programs that it starts end with the
// subtest.
func (h *host) in(tb testing.TB) *host {
	part := *h
	part.tb = tb
	return &part
}

// newHosts creates n hosts on one segment, without daemons.
func newHosts(tb testing.TB, n int) []*host {
	tb.Helper()
	var hosts []*host
	for i, ns := range nstest.Switch(tb, n, underlayMTU) {
		hosts = append(hosts, &host{Namespace: ns, tb: tb, number: i, dir: shortDir(tb)})
	}
	return hosts
}

// twoJoined returns two hosts that reach each other.
func twoJoined(tb testing.TB) (a, b *host) {
	tb.Helper()
	hosts := newHosts(tb, 2)
	for _, h := range hosts {
		h.join()
	}
	pingAll(hosts...)
	return hosts[0], hosts[1]
}

// shortDir creates a directory whose path is short enough for a socket's name
// (108 bytes, unix(7)); that of t.TempDir contains the test's name and may be
// too long.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "e2e-") //nolint:usetesting // the path must be short
	if err != nil {
		tb.Fatalf("make a folder: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) ip4() string { return fmt.Sprintf("10.44.0.%d", h.number+1) }
func (h *host) ip6() string { return fmt.Sprintf("fd44::%d", h.number+1) }

// start starts the daemon.
func (h *host) start(args ...string) {
	h.tb.Helper()
	h.daemon = startDaemon(h.tb, h.Namespace, h.dir, args...)
}

// ipoibd returns a command of ipoibd without the options that select the host's
// daemon.
func (h *host) ipoibd(args ...string) *exec.Cmd {
	return h.Command(os.Getenv(daemonEnv), args...)
}

// join starts the daemon, sets ib0 up with the host's addresses and waits for
// its carrier.
func (h *host) join(args ...string) {
	h.tb.Helper()
	h.start(args...)
	h.Run("ip", "link", "set", ifName, "up")
	h.addAddrs(ifName)
	h.waitCarrier()
}

func (h *host) addAddrs(dev string) {
	h.tb.Helper()
	h.Run("ip", "addr", "add", h.ip4()+"/24", "dev", dev)
	h.AddIPv6(dev, h.ip6()+"/64")
}

func (h *host) waitCarrier() {
	h.tb.Helper()
	eventually(h.tb, carrierLimit, "carrier of "+ifName, h.carrier)
}

// carrier reports whether ib0 has carrier, according to the kernel.
func (h *host) carrier() bool {
	return strings.Contains(h.Run("ip", "-o", "link", "show", ifName), "LOWER_UP")
}

// iface returns the daemon's status of ib0.
func (h *host) iface() iface {
	h.tb.Helper()
	s := h.daemon.status()
	if len(s.Interfaces) != 1 || s.Interfaces[0].Name != ifName {
		h.tb.Fatalf("status has interfaces %+v, want %s alone", s.Interfaces, ifName)
	}
	return s.Interfaces[0]
}

// qp returns the queue pair of ib0, which must exist.
func (h *host) qp() qp {
	h.tb.Helper()
	i := h.iface()
	if i.QP == nil {
		h.tb.Fatalf("%s has no queue pair: state %s, %s", ifName, i.State, i.Reason)
	}
	return *i.QP
}

// ping sends three echo requests, 0.2 s apart, to another host by IPv4 and as many by IPv6, and fails
// the test on any loss.
func (h *host) ping(other *host) {
	h.tb.Helper()
	// Until DAD ends, the kernel sends from an address of another netdev.
	eventually(h.tb, repairLimit, "no address of the host is tentative", func() bool {
		return h.Run("ip", "-6", "address", "show", "scope", "global", "tentative") == ""
	})
	for _, dst := range []string{other.ip4(), other.ip6()} {
		for n := range 3 { // one ping for each, because after several requests ping waits only briefly for the last reply
			if n > 0 {
				time.Sleep(200 * time.Millisecond)
			}
			out, err := h.Command("ping", "-n", "-c", "1", "-W", "2", dst).CombinedOutput()
			if err != nil {
				h.tb.Errorf("host %d pings %s: %v\n%s\n%s\n%s", h.number, dst, err, out, h.describe(), other.describe())
			}
		}
	}
}

// reaches reports whether one echo request is answered soon.
func (h *host) reaches(other *host) bool {
	return h.Command("ping", "-n", "-c", "1", "-W", "0.1", other.ip4()).Run() == nil
}

// waitReaches waits until an echo request to other is answered and returns how
// long that took. If that fails, it logs the state of both hosts.
func (h *host) waitReaches(other *host) time.Duration {
	h.tb.Helper()
	start := time.Now()
	for !h.reaches(other) {
		if time.Since(start) > repairLimit {
			h.tb.Fatalf("host %d does not reach host %d within %v\n%s\n%s", h.number, other.number, repairLimit, h.describe(), other.describe())
		}
	}
	return time.Since(start)
}

// describe returns the state of a host in readable form, with its counters and those of its kernel that are
// not 0, drops among them.
func (h *host) describe() string {
	status, _ := h.daemon.command("status", "-v").CombinedOutput()
	return fmt.Sprintf("host %d:\n%s\n%s\n%s", h.number, status, h.Run("ip", "neigh"), h.Run("nstat", "--ignore", "--noupdate"))
}

// pingAll makes every host ping every other one, all at the same time.
func pingAll(hosts ...*host) {
	var pings sync.WaitGroup
	for _, from := range hosts {
		for _, to := range hosts {
			if from != to {
				pings.Go(func() { from.ping(to) })
			}
		}
	}
	pings.Wait()
}

// eventually polls until ok; after limit the test fails.
func eventually(tb testing.TB, limit time.Duration, what string, ok func() bool) {
	tb.Helper()
	if !nstest.Poll(limit, ok) {
		tb.Fatalf("%s: not within %v", what, limit)
	}
}

// exists reports whether the host has an interface ib0, ours or not.
func (h *host) exists() bool {
	return h.Command("ip", "link", "show", ifName).Run() == nil
}

// addrs lists the addresses of ib0 except link-local ones, which the kernel
// removes and adds again when the carrier changes.
func (h *host) addrs() []string {
	h.tb.Helper()
	var addrs []string
	for _, line := range strings.Split(strings.TrimSpace(h.Run("ip", "-o", "addr", "show", "dev", ifName, "scope", "global")), "\n") {
		if f := strings.Fields(line); len(f) > 3 {
			addrs = append(addrs, f[3])
		}
	}
	return addrs
}
