package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
)

// Only rules that drop every datagram of the port on its way in count.
func TestParseFirewall(t *testing.T) {
	chain := func(hook, rules string) string {
		return "table inet t {\n\tchain c {\n\t\ttype filter hook " + hook + " priority filter; policy accept;\n" + rules + "\t}\n}\n"
	}
	dropping := func(text string) []diagnose.FirewallRule {
		return []diagnose.FirewallRule{{Family: "inet", Table: "t", Chain: "c", Handle: "3", Text: text}}
	}
	for name, c := range map[string]struct {
		listing string
		want    []diagnose.FirewallRule
	}{
		"drop":                      {chain("input", "\t\tudp dport 4791 drop # handle 3\n"), dropping("udp dport 4791 drop")},
		"reject":                    {chain("input", "\t\tudp dport 4791 reject with icmp port-unreachable # handle 3\n"), dropping("udp dport 4791 reject with icmp port-unreachable")},
		"counted":                   {chain("prerouting", "\t\tudp dport 4791 counter packets 2 bytes 99 drop # handle 3\n"), dropping("udp dport 4791 counter packets 2 bytes 99 drop")},
		"counted, but has met none": {chain("input", "\t\tudp dport 4791 counter packets 0 bytes 0 drop # handle 3\n"), nil},
		"another port":              {chain("input", "\t\tudp dport 47911 drop # handle 3\n"), nil},
		"another condition":         {chain("input", "\t\tip saddr != 192.0.2.0/24 udp dport 4791 drop # handle 3\n"), nil},
		"an exception before":       {chain("input", "\t\tip saddr 192.0.2.0/24 udp dport 4791 accept # handle 2\n\t\tudp dport 4791 drop # handle 3\n"), nil},
		"on its way out":            {chain("output", "\t\tudp dport 4791 drop # handle 3\n"), nil},
		"forwarded":                 {chain("forward", "\t\tudp dport 4791 drop # handle 3\n"), nil},
		"no hook":                   {"table inet t {\n\tchain c {\n\t\tudp dport 4791 drop # handle 3\n\t}\n}\n", nil},
		"cut":                       {"table inet t {\n\tchain c {\n\t\ttype filter hook input", nil},
		"nothing":                   {"", nil},
	} {
		if got, forwarding := parseFirewall([]byte(c.listing)); !slices.Equal(got, c.want) || len(forwarding) > 0 {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Only chains that drop what no rule accepts count, and only those that see IP packets.
func TestParseFirewallOfForwardedPackets(t *testing.T) {
	filter := "table ip filter {\n" +
		"\tchain FORWARD { # handle 2\n\t\ttype filter hook forward priority 0; policy drop;\n\t\tcounter jump A # handle 9\n\t\tcounter jump B # handle 10\n\t}\n" +
		"\tchain A {\n\t\tiifname \"br0\" accept # handle 11\n\t}\n}\n"
	listing := filter +
		"table inet t {\n\tchain c {\n\t\ttype filter hook forward priority 0; policy accept;\n\t}\n}\n" +
		"table bridge b {\n\tchain c {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n"
	_, got := parseFirewall([]byte(listing))
	want := []diagnose.FirewallChain{{Family: "ip", Table: "filter", Chain: "FORWARD", Text: filter}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestUnforwarded(t *testing.T) {
	if _, err := unforwarded(); err != nil {
		t.Error(err)
	}
}

// The rules that docs/security.md recommends are no finding.
func TestRecommendedFirewallIsNoFinding(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(text), "```nft\n")
	rules, _, found := strings.Cut(rules, "```")
	if !found || strings.Count(rules, "4791") < 5 {
		t.Fatal("the page no longer has the rules")
	}
	listed := ""
	for line := range strings.Lines(rules) {
		if strings.Contains(line, "4791") {
			line = strings.Replace(strings.TrimRight(line, "\n"), "counter", "counter packets 1 bytes 1", 1) + " # handle 9\n"
		}
		listed += line
	}
	if got, _ := parseFirewall([]byte(listed)); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestParseService(t *testing.T) {
	if got := parseService([]byte("LoadState=loaded\nActiveState=failed\nResult=exit-code\nNRestarts=5\n")); got != (diagnose.Service{Active: "failed", Result: "exit-code", Restarts: "5"}) {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"", "LoadState=not-found\nActiveState=inactive\n", "garbage"} {
		if got := parseService([]byte(text)); got != (diagnose.Service{}) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// The process of the test is examined as the kernel describes it.
func TestExamineProcess(t *testing.T) {
	self, err := examineProcess(0)
	if err != nil || !self.Known() || self.UID != os.Geteuid() {
		t.Fatalf("%+v, %v", self, err)
	}
	byPID, err := examineProcess(os.Getpid())
	if byPID.PID = 0; err != nil || byPID != self {
		t.Errorf("%+v, %v; want %+v", byPID, err, self)
	}
	if _, err := examineProcess(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that does not exist: %v", err)
	}
	out, err := exec.Command("sh", "-c", "ulimit -n 77 && grep -E 'open files|locked memory' /proc/self/limits").Output()
	if err != nil || limit(out, "Max open files") != 77 {
		t.Errorf("limit of %q is %d, %v", out, limit(out, "Max open files"), err)
	}
	if n := limit([]byte("Max locked memory         unlimited            unlimited            bytes\n"), "Max locked memory"); n != 1<<64-1 {
		t.Errorf("unlimited is %d", n)
	}
}

// The kernel knows when a process has started, whatever the clock says.
func TestClockStep(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now().Round(0)
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	for _, step := range []time.Duration{0, time.Hour, -time.Hour} {
		got := clockStep(child.Process.Pid, began.Add(-step)) // what it would believe if the clock was set by step since
		if t.Logf("%v for %v", got, step); (got - step).Abs() > time.Second {
			t.Errorf("step %v, want %v", got, step)
		}
	}
	if got := clockStep(1<<30, began); got != 0 {
		t.Errorf("of no process: %v", got)
	}
}

func TestCheckControl(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "c.sock"):               "",
		filepath.Join(dir, "new", "dir", "c.sock"): "",
		filepath.Join(file, "c.sock"):              "is not a directory",
		filepath.Join(file, "below", "c.sock"):     "not a directory",
	} {
		if err := checkControl(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestExamineSocket(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	l, err := net.Listen("unix", path("listens"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stale, err := net.Listen("unix", path("stale"))
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	if err := os.WriteFile(path("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]diagnose.SocketState{
		"listens": diagnose.SocketAnswers, "stale": diagnose.SocketStale, "file": diagnose.SocketBlocked,
		"none": diagnose.SocketAbsent, "file/below": diagnose.SocketDenied,
	} {
		s := examineSocket(t.Context(), path(name))
		if s.State != want || (s.Err == nil) != (want == diagnose.SocketAnswers || want == diagnose.SocketAbsent) {
			t.Errorf("%s: %+v, want the state %d", name, s, want)
		}
		if want == diagnose.SocketAnswers && s.PID != os.Getpid() {
			t.Errorf("%s: process %d, want %d", name, s.PID, os.Getpid())
		}
	}
}

// A program that prints without end, or never ends, does not delay doctor.
func TestRunIsBounded(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		script string
		want   string
	}{{"echo ok", "ok\n"}, {"echo no; exit 1", ""}, {"yes", ""}, {"echo late; sleep 600", ""}} {
		if got := string(run(t.Context(), "sh", "-c", c.script)); got != c.want {
			t.Errorf("%s: %.20q, want %q", c.script, got, c.want)
		}
	}
	if run(t.Context(), "no-such-program") != nil {
		t.Error("a missing program has output")
	}
	if took := time.Since(start); took > 20*programLimit {
		t.Errorf("took %v", took)
	} else {
		t.Logf("took %v", took)
	}
}

// The kernel's tables are read whole: each has entries, or once had, and a limit.
func TestNeighbourTables(t *testing.T) {
	tables, err := neighbourTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range tables {
		names = append(names, table.Name)
		if table.Limit <= 0 || table.Entries < 0 || table.Entries > 1<<24 {
			t.Errorf("%+v is not plausible", table)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"arp_cache", "ndisc_cache"}) {
		t.Errorf("tables %q", names)
	}
}

// Errors of other packages become facts: who has the port or the name.
func TestFactsOfErrors(t *testing.T) {
	taken := &udp.PortTakenError{Port: 4791, Holders: []udp.Holder{{PID: 9, Name: "x"}}, Kernel: "rdma_rxe"}
	p := takenPort(fmt.Errorf("open: %w", taken))
	if p == nil || !errors.Is(p.Err, taken) || len(p.Holders) != 1 || p.Holders[0].PID != 9 || p.Module != "rdma_rxe" {
		t.Errorf("%+v", p)
	}
	for _, err := range []error{nil, errors.New("no such device")} {
		if p := takenPort(err); p != nil {
			t.Errorf("%v: %+v", err, p)
		}
	}
	owned := &link.OwnedError{PID: 9}
	for _, want := range []diagnose.Claim{
		{}, {Err: link.ErrNameTaken, Foreign: true}, {Err: owned, Owned: true, Owner: 9}, {Err: link.ErrPermission},
	} {
		if got := claim(want.Err); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestSchemaVersion(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/doctor.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Version struct{ Const int } `json:"schema_version"`
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Properties.Version.Const != SchemaVersion {
		t.Errorf("version %d, want %d", schema.Properties.Version.Const, SchemaVersion)
	}
}
