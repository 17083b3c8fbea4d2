package vm

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ifName is the interface of every endpoint.
const ifName = "ib0"

// endpoint is a machine with a daemon. Its addresses are derived from its
// number, which starts at 0.
type endpoint struct {
	machine
	tb      testing.TB
	number  int
	control string
	daemon  process
}

// newEndpoint starts a daemon on a machine, with further arguments of `ipoibd
// run`, and returns when it answers on its control socket.
func newEndpoint(tb testing.TB, m machine, number int, args ...string) *endpoint {
	tb.Helper()
	e := &endpoint{machine: m, tb: tb, number: number, control: filepath.Join(m.runDir(), "ipoibd.sock")}
	e.startDaemon(args...)
	tb.Cleanup(e.showLog)
	return e
}

func (e *endpoint) startDaemon(args ...string) {
	e.tb.Helper()
	run := []string{"run", "--name", ifName, "--control", e.control, "--log-level", "debug"}
	e.runDaemon(append(run, args...)...)
}

// runDaemon runs ipoibd until it answers.
func (e *endpoint) runDaemon(args ...string) {
	e.tb.Helper()
	e.daemon = e.start("ipoibd", args...)
	eventually(e.tb, "the daemon answers", func() bool {
		e.requireAlive()
		return e.Try("ipoibd", "status", "--control", e.control)
	})
}

func (e *endpoint) requireAlive() {
	e.tb.Helper()
	select {
	case <-e.daemon.Exited():
		e.tb.Fatalf("the daemon of endpoint %d has ended\n%s", e.number, e.daemon.Stderr())
	default:
	}
}

// stop ends the daemon cleanly.
func (e *endpoint) stop() {
	e.tb.Helper()
	e.daemon.Signal(syscall.SIGTERM)
	awaitExit(e.tb, e.daemon)
}

// showLog shows the daemon's log if the test failed.
func (e *endpoint) showLog() {
	if e.tb.Failed() {
		e.tb.Logf("daemon of endpoint %d:\n%s", e.number, e.daemon.Stderr())
	}
}

func (e *endpoint) ip4() string { return fmt.Sprintf("10.44.0.%d", e.number+1) }
func (e *endpoint) ip6() string { return fmt.Sprintf("fd44::%d", e.number+1) }

// broadcast is the address of all endpoints.
const broadcast = "10.44.0.255"

// mtu returns the MTU of ib0 in bytes.
func (e *endpoint) mtu() (mtu int) {
	e.tb.Helper()
	out := e.Run("ip", "-o", "link", "show", ifName)
	_, after, _ := strings.Cut(out, " mtu ")
	if _, err := fmt.Sscan(after, &mtu); err != nil {
		e.tb.Fatalf("MTU of endpoint %d: %v in %q", e.number, err, out)
	}
	return mtu
}

// hasIPv6 reports whether ib0 is wide enough for Linux to have IPv6 on it (RFC
// 8200, section 5).
func (e *endpoint) hasIPv6() bool {
	e.tb.Helper()
	return e.mtu() >= 1280
}

// join sets ib0 up, waits for its carrier, and gives it the endpoint's addresses.
func (e *endpoint) join() {
	e.tb.Helper()
	e.Run("ip", "link", "set", ifName, "up")
	eventually(e.tb, "carrier of "+ifName, e.carrier)
	e.Run("ip", "addr", "add", e.ip4()+"/24", "broadcast", broadcast, "dev", ifName)
	if e.hasIPv6() {
		e.Run("ip", "addr", "add", e.ip6()+"/64", "dev", ifName, "nodad")
	}
	e.Run("ip", "route", "add", "239.0.0.0/8", "dev", ifName)
	e.solicitLonger()
}

// solicitLonger makes the kernel send 30 requests, one a second, before it gives up
// on a neighbour, which may wait for its processor longer than the default of 3 s.
func (e *endpoint) solicitLonger() {
	e.tb.Helper()
	args, families := []string{"-q", "-w"}, []string{"ipv4"}
	if e.hasIPv6() {
		families = append(families, "ipv6")
	}
	for _, family := range families {
		for _, how := range []string{"ucast_solicit", "mcast_solicit"} {
			args = append(args, fmt.Sprintf("net.%s.neigh.%s.%s=30", family, ifName, how))
		}
	}
	e.Run("sysctl", args...)
}

// carrier reports whether ib0 has carrier, according to the kernel.
func (e *endpoint) carrier() bool {
	return strings.Contains(e.Run("ip", "-o", "link", "show", ifName), "LOWER_UP")
}

// waitReaches waits until an echo request to each address of another one is answered.
func (e *endpoint) waitReaches(other *endpoint) {
	e.tb.Helper()
	to := []string{other.ip4()}
	if other.hasIPv6() {
		to = append(to, other.ip6())
	}
	for _, address := range to {
		eventually(e.tb, fmt.Sprintf("endpoint %d reaches %s", e.number, address), func() bool {
			return e.Try("ping", "-n", "-c", "1", "-W", "1", address)
		})
	}
}
