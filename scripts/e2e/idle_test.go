package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// maxIdleSwitches is ten times the context switches per second that an idle daemon should need.
const maxIdleSwitches = 100

// A daemon whose interface has a carrier, a fast path and no traffic hardly runs.
func TestIdleDaemonRests(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const settle, period = 30 * time.Second, 10 * time.Second // the last announcement but one, and what follows it, end first
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0") // the kernel repeats them for an hour
		h.join("--fast-path")
	}
	pingAll(a, b)
	time.Sleep(settle)
	before := a.daemon.switches(t)
	time.Sleep(period)
	rate := float64(a.daemon.switches(t)-before) / period.Seconds()
	t.Logf("%.0f context switches a second", rate)
	if rate > maxIdleSwitches {
		t.Errorf("%.0f context switches a second, want %d at most", rate, maxIdleSwitches)
	}
	pingAll(a, b)
}

// switches returns the context switches of all threads so far. Those of threads that have ended
// are missing; Go's threads do not end.
func (d *daemon) switches(t *testing.T) (n int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of the daemon: %v, %v", threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "ctxt_switches") {
				count, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					t.Fatal(err)
				}
				n += count
			}
		}
	}
	return n
}
