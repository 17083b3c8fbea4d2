package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// sandbox is what the status says about the daemon's own privileges.
type sandbox struct {
	On           bool     `json:"on"`
	Capabilities []string `json:"capabilities"`
	NoNewPrivs   bool     `json:"no_new_privs"`
	Landlock     int      `json:"landlock"`
	Seccomp      bool     `json:"seccomp"`
	Missing      []string `json:"missing"`
}

// process returns fields of /proc/PID/status of the daemon.
func (d *daemon) process(names ...string) string {
	d.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.tb.Fatal(err)
	}
	var out []string
	for _, name := range names {
		m := regexp.MustCompile(`(?m)^` + name + `:\s*(.*)$`).FindSubmatch(text)
		if m == nil {
			d.tb.Fatalf("no field %s in\n%s", name, text)
		}
		out = append(out, name+" "+string(m[1]))
	}
	return strings.Join(out, ", ")
}

// fences are what the kernel says about a process in the sandbox with some capabilities. The bounding
// set is as small, so none can be gained.
func fences(capabilities ...int) string {
	var set uint64
	for _, c := range capabilities {
		set |= 1 << c
	}
	return fmt.Sprintf("CapInh %016x, CapPrm %016x, CapEff %016x, CapBnd %016x, CapAmb %016x, NoNewPrivs 1, Seccomp 2", set, set, set, set, set)
}

// The daemon has only the capabilities that its flags need. The kernel and the status say the same.
func TestSandbox(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	for _, c := range []struct {
		args []string
		want []int
		text string
	}{
		{[]string{"--ebpf=false"}, []int{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}, "CAP_NET_ADMIN CAP_NET_RAW"},
		{nil, []int{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}, "CAP_NET_ADMIN CAP_NET_RAW"},
		{
			[]string{"--ebpf=false", "--lanes", "2", "--follow"},
			[]int{unix.CAP_CHOWN, unix.CAP_NET_BROADCAST, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN},
			"CAP_CHOWN CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN",
		},
	} {
		a.join(append(c.args, "--remove")...)
		got := a.daemon.process("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
		if want := fences(c.want...); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", c.args, got, want)
		}
		s := a.daemon.status().Sandbox
		if !s.On || strings.Join(s.Capabilities, " ") != c.text || !s.NoNewPrivs || s.Landlock == 0 || !s.Seccomp || len(s.Missing) > 0 {
			t.Errorf("%v: %+v", c.args, s)
		}
		out, err := a.daemon.command("status").Output()
		if want := fmt.Sprintf("no_new_privs, Landlock ABI %d, seccomp; capabilities %s\n", s.Landlock, c.text); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: status has no %q: %v\n%s", c.args, want, err, out)
		}
		if got := a.daemon.process("Name"); got != "Name ipoibd" {
			t.Errorf("%s, want that of the program", got)
		}
		a.daemon.stop()
	}
}

// Without a sandbox the daemon keeps what it was given, and says so.
func TestSandboxOff(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	a.start("--sandbox=false")
	if got := a.daemon.process("NoNewPrivs", "Seccomp"); got != "NoNewPrivs 0, Seccomp 0" {
		t.Error(got)
	}
	if s := a.daemon.status().Sandbox; s.On || s.NoNewPrivs || s.Landlock != 0 || s.Seccomp || len(s.Capabilities) < 30 {
		t.Errorf("%+v", s)
	}
	if out, err := a.daemon.command("status").Output(); err != nil || !regexp.MustCompile(`(?m)^sandbox +off$`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A changed configuration that needs more than the daemon has kept is refused, and changes nothing.
// What it has kept still suffices for the rest.
func TestSandboxRefusesMore(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	const lean = "devices: [{name: soft, underlay: " + nstest.Dev + ", pkeys: [0xffff, 0x8001]}]\ninterfaces: [{name: " + ifName + ", ebpf: false}"
	a.startWithFile(lean + "]\n")
	a.Run("ip", "link", "set", ifName, "up")
	a.addAddrs(ifName)
	a.waitCarrier()
	b.join()
	b.waitReaches(a)
	before := a.qp()
	const says = "the daemon has given up privileges at its start that this needs: "
	for what, needs := range map[string]string{
		lean + ", {name: ib7, pkey: 0x8001}]\n":                                "to load eBPF programs",
		lean + ", {name: ib7, pkey: 0x8001, ebpf: false, follow: true}]\n":     "CAP_NET_BROADCAST, CAP_SYS_ADMIN",
		strings.Replace(lean, "pkeys", "lanes: 2, pkeys", 1) + "]\n":           "CAP_CHOWN",
		strings.Replace(lean, "[{", "[{device: rxe0}, {", 1) + "]\n":           "CAP_IPC_LOCK, to read /etc/libibverbs.d, to open devices in /dev; restart it",
		strings.Replace(lean, "pkeys", "peers: [b.example], pkeys", 1) + "]\n": "to read /etc, to read /etc/resolv.conf",
	} {
		a.edit(what)
		if out, errs, code := a.reload(); code != 2 || out != "" || !strings.Contains(errs, says+needs) {
			t.Errorf("%s: exit %d, %q, %q; want %s", what, code, out, errs, needs)
		}
	}
	if code, text := a.post("/v1/interfaces", `{"name": "ib7", "pkey": "0x8001"}`); code != http.StatusUnprocessableEntity || !strings.Contains(text, says+"to load eBPF programs") {
		t.Errorf("%d %s, want a refusal", code, text)
	}
	if s := a.daemon.status(); len(s.Interfaces) != 1 || len(s.Devices) != 1 || a.qp().QPN != before.QPN {
		t.Errorf("refused, but changed: %+v", s)
	}
	if code, text := a.post("/v1/interfaces", `{"name": "ib7", "pkey": "0x8001", "ebpf": false}`); code != http.StatusOK {
		t.Errorf("%d %s, want an interface", code, text)
	}
	a.edit(strings.Replace(lean, "ebpf: false", "ebpf: false, mtu: 1300", 1) + "]\n")
	if got, want := a.reloads(), ifName+" changed mtu"; got != want {
		t.Errorf("a reload within the sandbox: %q, want %q", got, want)
	}
	pingAll(a, b)
}

// post sends a request to the control socket, and returns the answer.
func (h *host) post(path, body string) (code int, text string) {
	h.tb.Helper()
	client := &http.Client{Timeout: startLimit, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.daemon.control)
		},
	}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://ipoibd"+path, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		h.tb.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		h.tb.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// Without --follow, an interface that is moved away has failed, with a reason.
func TestSandboxDoesNotFollow(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	a.join()
	in := nstest.New(t)
	a.Run("ip", "link", "set", ifName, "netns", in.Path())
	a.daemon.requireEnd("--follow")
	start := time.Now()
	a.join() // creates another one
	t.Logf("another %s after %v", ifName, time.Since(start).Round(time.Millisecond))
}
