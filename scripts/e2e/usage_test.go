package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// A typical mistake ends the daemon with a single line that explains what to
// do.
func TestMistakes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tests := []struct {
		name    string
		prepare func(*testing.T, *host)
		args    []string // instead of those of a host
		want    string   // expression that the line matches
	}{
		{"unknown underlay", nil, []string{"--underlay", "nope0"}, `nope0`},
		{"name taken by another interface", takeName, nil, `ib0.*(exists|taken|not ours)`},
		{"invalid P_Key", nil, []string{"--pkey", "0x8000"}, `"0x8000" is not a P_Key`},
		{"unknown log level", nil, []string{"--log-level", "loud"}, `--log-level: "loud" is not one of debug`},
		{"name too long", nil, []string{"--name", "interface0123456"}, `not an interface's name`},
		{"argument too many", nil, []string{"ib0"}, `unknown command|accepts 0 arg|no argument`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHosts(t, 1)[0]
			if tt.prepare != nil {
				tt.prepare(t, h)
			}
			requireMistake(t, h.runDaemon(tt.args...), tt.want)
		})
	}
}

// A mistake in the configuration file is reported with its line and field.
func TestMistakeInFile(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	file := filepath.Join(h.dir, "ipoibd.yaml")
	text := "devices:\n  - name: soft\n    underlay: eth0\ninterfaces:\n  - name: ib0\n    mtu: 5\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	requireMistake(t, h.ipoibd("run", "--config", file), `ipoibd\.yaml:6: .*mtu`)
	requireMistake(t, h.ipoibd("run", "--config", file+".old"), `ipoibd\.yaml\.old: no such file`)
	requireMistake(t, h.ipoibd("run", "--config", file, "--mtu", "1280"), `ipoibd\.yaml:6: .*mtu`)

	text = "devices: [{name: soft, underlay: eth0}]\ninterfaces: [{name: ib0}, {name: ib1}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	requireMistake(t, h.ipoibd("run", "--config", file, "--name", "ib2"), `--name: .*ipoibd\.yaml configures several devices or interfaces`)
}

// The device node and the capability are named when they are missing.
func TestNoTUN(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.Run("mount", "-t", "tmpfs", "none", "/dev/net")
	requireMistake(t, h.runDaemon(), `/dev/net/tun`)
}

func TestNoCapability(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	cmd := h.Command("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin",
		os.Getenv(daemonEnv), "run", "--underlay", nstest.Dev, "--control", filepath.Join(h.dir, "control.sock"))
	requireMistake(t, cmd, `CAP_NET_ADMIN`)
}

// The daemon waits until conditions that may resolve by themselves have done so,
// and the status names them.
func TestWaits(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.Run("ip", "link", "set", nstest.Dev, "mtu", "300")
	a.start()
	a.Run("ip", "link", "set", ifName, "up")
	a.waitReason(`underlay MTU too small.*raise .* by \d+`)
	a.daemon.waitLogged(`msg="device open" device=soft hca=soft underlay=` + nstest.Dev)

	a.Run("ip", "link", "set", nstest.Dev, "mtu", "1500", "down")
	a.waitReason(`port 1 is DOWN`)

	a.Run("ip", "link", "set", nstest.Dev, "up")
	a.waitCarrier()
	a.addAddrs(ifName)
	b.join()
	pingAll(a, b)
}

// waitReason waits until the status gives the wanted reason why ib0 is not up.
func (h *host) waitReason(want string) {
	h.tb.Helper()
	var got iface
	defer func() { h.tb.Logf("state %s: %s", got.State, got.Reason) }()
	eventually(h.tb, carrierLimit, "reason "+want, func() bool {
		got = h.iface()
		return got.State == "waiting" && regexp.MustCompile(want).MatchString(got.Reason)
	})
}

// A second daemon with the same interface or control socket is refused, and the
// first daemon continues.
func TestTwoDaemons(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	requireMistake(t, a.runDaemon(), `another daemon .*stop it, or choose another path with --control`)
	other := filepath.Join(a.dir, "other.sock")
	requireMistake(t, a.runDaemon("--control", other), `the interface is in use by another process \(process \d+\): stop it, or choose another name`)
	pingAll(a, b)

	// A daemon for another interface on the same underlay names the one that has the port, although its
	// sandbox will hide that one.
	second := await(t, a.Namespace, other, a.runDaemon("--control", other, "--name", "ib9"))
	second.waitLogged(fmt.Sprintf("port taken by ipoibd (pid %d)", a.daemon.cmd.Process.Pid))
}

// waitLogged waits until the daemon has logged a text.
func (d *daemon) waitLogged(text string) {
	d.tb.Helper()
	eventually(d.tb, countLimit, "the log has "+text, func() bool { return strings.Contains(d.log.String(), text) })
}

// Without a daemon, status and delete say so.
func TestNoDaemon(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	socket := filepath.Join(h.dir, "none.sock")
	requireMistake(t, h.ipoibd("status", "--control", socket), `none\.sock: no daemon answers`)
	requireMistake(t, h.ipoibd("delete", ifName), `ib0`)
	if out, err := h.ipoibd("delete", "--if-exists", ifName).CombinedOutput(); err != nil {
		t.Errorf("delete --if-exists: %v\n%s", err, out)
	}
	takeName(t, h)
	requireMistake(t, h.ipoibd("delete", "--if-exists", ifName), `ib0`)
	if !h.exists() {
		t.Error("ipoibd delete deleted an interface that is not ours")
	}
}

// runDaemon returns the command of a daemon that is expected to exit by itself.
func (h *host) runDaemon(args ...string) *exec.Cmd {
	run := []string{"run", "--name", ifName, "--underlay", nstest.Dev, "--control", filepath.Join(h.dir, "control.sock")}
	return h.ipoibd(append(run, args...)...)
}

// requireMistake runs a command that must fail within the start limit, its last
// line being "ipoibd: " and text that matches want.
func requireMistake(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	timer := time.AfterFunc(startLimit, func() { _ = cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	if !timer.Stop() {
		t.Fatalf("%q did not end\n%s", cmd.Args, out)
	}
	if err == nil {
		t.Fatalf("%q succeeded, want an error\n%s", cmd.Args, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	last := lines[len(lines)-1]
	if !regexp.MustCompile("^ipoibd: .*(?:" + want + ")").MatchString(last) {
		t.Errorf("last line %q, want it to match %q; full output:\n%s", last, want, out)
	}
	t.Log(last)
}

func takeName(t *testing.T, h *host) {
	t.Helper()
	h.Run("ip", "link", "add", ifName, "type", "veth", "peer", "name", "other")
}
