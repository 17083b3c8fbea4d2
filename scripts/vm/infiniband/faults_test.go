package infiniband

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
)

// slower is the factor allowed over the goal: 10 for the emulated processor, 10 for a busy machine.
const slower = 100

// hcaFaults are faults of an HCA, with arguments of ipoibd, the highest rung that repairs them, and the goal for the time from
// detection to health.
var hcaFaults = []struct {
	commands []string
	rung     string
	goal     time.Duration
}{
	{[]string{"fault send_error_err"}, "reset_qp", 5 * time.Millisecond},
	{[]string{"fault recv_error_err"}, "reset_qp", 5 * time.Millisecond},
	{[]string{"fault reset_fails", "fault send_error_err"}, "recreate_qp", 10 * time.Millisecond},
	{[]string{"fault cq_error"}, "rebuild_cq", 10 * time.Millisecond},
	{[]string{"fault device_fatal"}, "reset_device", 100 * time.Millisecond},
	{[]string{"reset qp"}, "reset_qp", 5 * time.Millisecond},
	{[]string{"reset cq"}, "rebuild_cq", 10 * time.Millisecond},
	{[]string{"reset device"}, "reset_device", 100 * time.Millisecond},
}

// requireFaultsRepaired requires that the daemon repairs each fault of its HCA by the rung for it, and within its goal.
// Afterwards the port is a member of its groups, and the hosts reach each other over new paths. The log compares with a software
// HCA on the same processor.
func (p *pair) requireFaultsRepaired(t *testing.T, n network) {
	host := p.guests[ours]
	yardstick := startSoft(t, host)
	defer yardstick.Signal(syscall.SIGTERM)
	ping := host.Start("ping", "-n", "-q", "-i", "0.01", n.ip4(theirs)) // sends and receives that can fail
	for _, f := range hcaFaults {
		what := strings.Join(f.commands, ", ")
		rung, took := repaired(t, host, "ib0", f.commands)
		t.Logf("%s: %s in %v (goal %v)", what, rung, took.Round(time.Microsecond), f.goal)
		if rung != f.rung || took > slower*f.goal {
			t.Errorf("%s: %s in %v, want %s in at most %d times %v", what, rung, took, f.rung, slower, f.goal)
		}
		if strings.HasPrefix(what, "reset ") {
			rung, took := repaired(t, host, soft, f.commands, "--control", softControl)
			t.Logf("the same with a software HCA: %s in %v", rung, took.Round(time.Microsecond))
		}
		p.WaitMembers(p.Group(broadcastGroup).MLID, ours, theirs)
		for _, g := range p.guests {
			g.Run("ip", "neigh", "flush", "dev", "ib0") // so that requests go to groups again
		}
		p.requireReached(t, n)
		if strings.HasPrefix(what, "fault ") { // so that the next one does not count as a repetition
			p.daemon.Signal(syscall.SIGKILL)
			p.daemon.Wait(carrierLimit)
			p.restartDaemon(t)
			eventually(t, carrierLimit, "the carrier is back", func() bool { return read(host, "/sys/class/net/ib0/carrier") == "1" })
		}
	}
	ping.Signal(syscall.SIGKILL)
}

// recovery is what this test uses of an entry of `ipoibd events --json`.
type recovery struct {
	Kind    string  `json:"kind"`
	Rung    string  `json:"rung"`
	Seconds float64 `json:"duration_seconds"`
}

// The interface and the control socket of a daemon with a software HCA.
const (
	soft        = "soft0"
	softControl = "/run/soft.sock"
)

// startSoft starts another daemon in a guest, with a software HCA that has no peers.
func startSoft(t *testing.T, g *guest.Guest) *guest.Process {
	t.Helper()
	g.Run("ip", "link", "add", "underlay0", "type", "dummy")
	g.Run("ip", "addr", "add", "192.0.2.1/24", "dev", "underlay0")
	g.Run("ip", "link", "set", "underlay0", "up")
	daemon := g.Start("ipoibd", "run", "--name", soft, "--underlay", "underlay0", "--control", softControl)
	waitAnswers(t, g, daemon, "--control", softControl)
	g.Run("ip", "link", "set", soft, "up")
	waitFor(t, g, "/sys/class/net/"+soft+"/carrier", "1")
	return daemon
}

// repaired gives a daemon commands that lead to a recovery of an interface, and returns its rung and its time from detection to
// health.
func repaired(t *testing.T, g *guest.Guest, dev string, commands []string, args ...string) (rung string, took time.Duration) {
	t.Helper()
	before := len(recovered(t, g, dev, args))
	for _, command := range commands {
		g.Run("ipoibd", append(strings.Fields(command), args...)...)
	}
	var all []recovery
	eventually(t, carrierLimit, dev+" recovers from "+strings.Join(commands, ", "), func() bool {
		all = recovered(t, g, dev, args)
		return len(all) > before
	})
	return all[before].Rung, time.Duration(all[before].Seconds * float64(time.Second))
}

// recovered returns the recoveries of an interface that have succeeded.
func recovered(t *testing.T, g *guest.Guest, dev string, args []string) (all []recovery) {
	t.Helper()
	for line := range strings.Lines(g.Run("ipoibd", append([]string{"events", "--json", "--interface", dev}, args...)...)) {
		var r recovery
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("ipoibd events: %v\n%s", err, line)
		}
		if r.Kind == "recovered" {
			all = append(all, r)
		}
	}
	return all
}
