package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"ipoibd/link/linktest/nstest"
)

const (
	dashboardFile = "../../docs/monitoring/dashboard.json"
	rulesFile     = "../../docs/monitoring/alerts.yaml"
	metricsPort   = 9471
)

// alertLimit is how long an alert may take to fire: the longest "for" of the rules takes 10 s
// here, and the longest window 15 s.
const alertLimit = 60 * time.Second

// Prometheus scrapes three daemons under faults. Every alert fires on the host that has its
// fault, none fires before that on the others, and every query of the dashboard returns data.
// A minute of the rules lasts a second here.
func TestMonitoring(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 4)
	a, b, odd, monitor := hosts[0], hosts[1], hosts[2], hosts[3]
	alerts := scaledRules(t, filepath.Join(monitor.dir, "alerts.yaml"))
	a.join(a.monitored("give_up_after: 2s")...)
	b.join(b.monitored("give_up_after: 10m")...)
	pingAll(a, b)
	a.stream(b)
	p := monitor.prometheus(monitor.dir, a, b, odd) // not before, as a host is down until its daemon answers
	began := time.Now()
	eventually(t, alertLimit, "Prometheus scrapes both hosts", func() bool { return len(p.query("ipoibd_interface_ready", began)) == 2 })
	time.Sleep(3 * time.Second)                                                                                                     // longer than the shortest "for"
	early := slices.DeleteFunc(p.firing(began), func(alert string) bool { return strings.HasSuffix(alert, " "+odd.metricsAddr()) }) // it does not run yet
	if len(early) > 0 {
		t.Errorf("alerts before any fault: %v", early)
	}
	p.expect("IpoibdRecoveringOften", a)
	p.expect("IpoibdVerbsStuck", a)
	p.expect("IpoibdDrops", a)
	p.expect("IpoibdDeviceDrops", a)
	p.expect("IpoibdQueueFull", a)
	p.expect("IpoibdPeerRefuses", a)
	p.expect("IpoibdInterfaceNotReady", a)
	p.expect("IpoibdDeviceNotOpen", a)
	p.expect("IpoibdDeviceGivenUp", a)
	p.expect("IpoibdDown", b)
	p.expect("IpoibdRestarting", b)
	p.expect("IpoibdNoPeers", odd)
	p.expect("IpoibdNotice", odd)
	p.expect("IpoibdDescriptors", odd)
	p.requireNames(alerts)

	// One host has mistakes in its configuration: another P_Key, a peer's name that does not
	// resolve, and a low limit of descriptors.
	odd.join(append(odd.monitored("peers: [nowhere.invalid]"), "--pkey", "0x8001")...)
	odd.Run("prlimit", "--pid", fmt.Sprint(odd.daemon.cmd.Process.Pid), fmt.Sprintf("--nofile=%d:", odd.daemon.status().FDs+3))

	// A frame to a MAC of no peer, whose address is resolved once a host has it.
	a.Run("ip", "neigh", "replace", "10.44.0.98", "lladdr", "02:00:00:00:00:98", "dev", ifName)
	_ = a.Command("ping", "-q", "-c", "1", "-W", "0.1", "10.44.0.98").Run()
	b.Run("ip", "addr", "add", "10.44.0.98/24", "dev", ifName)

	// Frames to an address that no one has, datagrams that are no RoCE, and bursts that the
	// queue of ib0 cannot hold.
	a.Run("ip", "neigh", "replace", "10.44.0.99", "lladdr", "02:00:00:00:00:99", "dev", ifName)
	a.background("ping", "-q", "-i", "0.05", "10.44.0.99")
	monitor.background("bash", "-c", fmt.Sprintf("while echo short > /dev/udp/%s/4791; do sleep 0.05; done", a.underlay()))
	a.Run("ip", "link", "set", ifName, "txqueuelen", "1")
	for range 5 {
		a.daemon.inject(faultRequest{Kind: "send_error_err"})
		time.Sleep(400 * time.Millisecond)
	}
	a.daemon.inject(faultRequest{Kind: "verb_hangs_forever", Verb: "modify_qp"})
	a.daemon.requirePost("/v1/reset", map[string]string{"scope": "qp"})
	p.await("IpoibdRecoveringOften", "IpoibdVerbsStuck", "IpoibdDrops", "IpoibdDeviceDrops", "IpoibdQueueFull", "IpoibdNoPeers", "IpoibdNotice", "IpoibdDescriptors")

	b.daemon.kill() // the stream goes on, and b's kernel refuses it
	p.await("IpoibdDown", "IpoibdPeerRefuses")
	for start := time.Now(); !p.fires("IpoibdRestarting") && time.Since(start) < alertLimit; {
		started := time.Now()
		b.start(b.monitored("give_up_after: 10m")...)
		p.awaitScrape(b, started)
		b.daemon.kill()
	}
	p.await("IpoibdRestarting")

	a.daemon.inject(faultRequest{Kind: "unplug"})
	p.await("IpoibdInterfaceNotReady", "IpoibdDeviceNotOpen", "IpoibdDeviceGivenUp")
	a.daemon.inject(faultRequest{Kind: "replug"})
	a.daemon.requirePost("/v1/recover", nil)
	a.waitCarrier()

	queries := dashboardQueries(t)
	for _, q := range queries {
		n := 0
		eventually(t, repairLimit, q.panel+": data for "+q.expr, func() bool { // once a scrape sees the outage of the recovery
			n = len(p.query(q.scaled(), began))
			return n > 0
		})
		t.Logf("%s: %d series for %s", q.panel, n, q.expr)
	}
	t.Logf("%d alerts and %d queries in %s", len(alerts), len(queries), time.Since(began).Round(time.Second))
}

// monitored returns the arguments of a daemon with a setting of its device, whose metrics are
// served on the underlay.
func (h *host) monitored(setting string) []string {
	h.tb.Helper()
	file := filepath.Join(h.dir, "ipoibd.yaml")
	text := fmt.Sprintf("metrics_listen: %s\ndevices: [{name: soft, underlay: %s, pkeys: [0xffff, 0x8001], %s}]\ninterfaces: [{name: %s}]\n", h.metricsAddr(), nstest.Dev, setting, ifName)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	return []string{"--config", file, "--allow-faults"}
}

func (h *host) metricsAddr() string { return fmt.Sprintf("%s:%d", h.underlay(), metricsPort) }

// minutes matches the durations of the rules.
var minutes = regexp.MustCompile(`\b(\d+)m\b`)

// scaled lets an expression's minutes last a second.
func scaled(text string) string { return minutes.ReplaceAllString(text, "${1}s") }

// scaledRules checks the rules, writes them with shorter durations to a file, and returns the
// names of the alerts.
func scaledRules(t *testing.T, file string) (names []string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", rulesFile).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(scaled(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if names = append(names, r.Alert); !strings.Contains(string(manual), "\n| `"+r.Alert+"` |") {
				t.Errorf("docs/monitoring.md has no row for %s", r.Alert)
			}
		}
	}
	return names
}

// dashboardQuery is a query of one panel.
type dashboardQuery struct{ panel, expr string }

// scaled replaces the variables of Grafana.
func (q dashboardQuery) scaled() string {
	return scaled(strings.NewReplacer("$__rate_interval", "5s", "$instance", ".*", "$interface", ".*").Replace(q.expr))
}

func dashboardQueries(t *testing.T) (list []dashboardQuery) {
	t.Helper()
	var board struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			list = append(list, dashboardQuery{p.Title, q.Expr})
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s has no query", p.Title)
		}
	}
	if slices.ContainsFunc(list, func(q dashboardQuery) bool { return strings.Contains(q.scaled(), "$") }) {
		t.Errorf("a query has a variable that this test does not know: %v", list)
	}
	return list
}
