package infiniband

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slower is the factor allowed over the goal: several for a processor that executes 10^9 instructions a second, the rest for
// what the guest waits for on a busy machine.
const slower = 10

// recoveryTime passes before the test asks for events. The guest has one processor, and a program that starts meanwhile would
// take it from the daemon for longer than the daemon needs to recover.
const recoveryTime = 500 * time.Millisecond

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
// Afterwards the port is a member of its groups, and the hosts reach each other over new paths.
func (p *pair) requireFaultsRepaired(t *testing.T, n network) {
	host := p.guests[ours]
	// Below this HCA, rdmavt waits for a grace period of RCU when it resets a queue pair (rvt_remove_qp), by default about 10 ms.
	host.Run("sh", "-ec", "echo 1 >/sys/kernel/rcu_expedited")
	// As by default in Debian; guests boot without huge pages.
	host.Run("sh", "-ec", "echo always >/sys/kernel/mm/transparent_hugepage/enabled")
	ping := host.Start("ping", "-n", "-q", "-i", "0.01", n.ip4(theirs)) // sends and receives that can fail
	for _, f := range hcaFaults {
		what := strings.Join(f.commands, ", ")
		before := len(p.recovered(t))
		for _, command := range f.commands {
			host.Run("ipoibd", strings.Fields(command)...)
		}
		time.Sleep(recoveryTime)
		var all []recovery
		eventually(t, carrierLimit, "ib0 recovers from "+what, func() bool {
			all = p.recovered(t)
			return len(all) > before
		})
		took := time.Duration(all[before].Seconds * float64(time.Second))
		t.Logf("%s: %s in %v (goal %v)", what, all[before].Rung, took.Round(time.Microsecond), f.goal)
		if all[before].Rung != f.rung || took > slower*f.goal {
			t.Errorf("%s: %s in %v, want %s in at most %d times %v", what, all[before].Rung, took, f.rung, slower, f.goal)
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

// recovered returns the recoveries of ib0 that have succeeded.
func (p *pair) recovered(t *testing.T) (all []recovery) {
	t.Helper()
	for line := range strings.Lines(p.guests[ours].Run("ipoibd", "events", "--json", "--interface", "ib0")) {
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
