package vm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// finding is what these tests use of `ipoibd doctor --json`.
type finding struct {
	ID       string `json:"id"`
	Evidence string `json:"evidence"`
	Command  string `json:"command"`
}

// diagnosed waits until doctor names only one condition ("": none), and returns that finding.
func diagnosed(t *testing.T, g inGuest, want string, args ...string) (f finding) {
	t.Helper()
	eventually(t, "doctor finds "+want, func() bool {
		var report struct{ Findings []finding }
		out := g.Run("sh", "-c", "ipoibd doctor --json --watch 100ms --control /run/ipoibd/ipoibd.sock "+strings.Join(args, " ")+"; true")
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("doctor: %v\n%s", err, out)
		}
		f = finding{}
		if len(report.Findings) > 0 {
			f = report.Findings[0]
		}
		if f.ID != want || len(report.Findings) > 1 {
			t.Logf("doctor: %+v, want %q", report.Findings, want)
			return false
		}
		return true
	})
	return f
}

// Doctor names what only a machine of its own can show: a module that holds the UDP port, a real
// HCA that is missing or whose link is down, and a clock that was set. Its commands help.
func TestDoctor(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		g := newRxeGuest(t, series, nstest.NewSegment(t, 1500))
		diagnosed(t, g, "", "--device", rxe0)
		g.Run("ip", "link", "set", "eth0", "down")
		f := diagnosed(t, g, "hca_unusable", "--device", rxe0)
		t.Logf("its link is down: %s", f.Evidence)
		g.Run("ip", "link", "set", "eth0", "up")
		diagnosed(t, g, "", "--device", rxe0)
		g.Run("rdma", "link", "delete", rxe0)
		f = diagnosed(t, g, "hca_missing", "--device", rxe0)
		g.Run("sh", "-c", strings.ReplaceAll(f.Command, "NETDEV", "eth0"))
		diagnosed(t, g, "", "--device", rxe0)

		f = diagnosed(t, g, "port_taken", "--underlay", "eth0")
		if !strings.Contains(f.Evidence, "rdma_rxe") {
			t.Errorf("the evidence does not name the module: %s", f.Evidence)
		}
		g.Run("sh", "-c", f.Command)
		diagnosed(t, g, "", "--underlay", "eth0")

		e := newEndpoint(t, g, 0, "--underlay", "eth0")
		e.join()
		diagnosed(t, g, "")
		// By the uptime, because a guest may take longer for all this than the step that doctor tolerates.
		boot, err := strconv.Atoi(strings.TrimSpace(g.Run("sh", "-c", "read up _ </proc/uptime; echo $(($(date +%s) - ${up%.*}))")))
		if err != nil {
			t.Fatal(err)
		}
		set := func(step int) {
			g.Run("sh", "-c", fmt.Sprintf("read up _ </proc/uptime; date -s @$((%d + ${up%%.*}))", boot+step))
		}
		for _, step := range []int{3600, -3600} {
			set(step)
			t.Logf("the clock was set: %s", diagnosed(t, g, "clock_stepped").Evidence)
		}
		set(0)
		diagnosed(t, g, "")
	})
}
