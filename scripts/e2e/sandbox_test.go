package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
			[]int{unix.CAP_NET_BROADCAST, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN},
			"CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN",
		},
	} {
		a.join(append(c.args, "--remove")...)
		got := a.daemon.process("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
		if want := fences(c.want...); got != want {
			t.Errorf("%v:\ngot  %s\nwant %s", c.args, got, want)
		}
		s := a.daemon.status().Sandbox
		s.Missing = slices.DeleteFunc(s.Missing, func(what string) bool { // before ABI 9 of Landlock
			return strings.HasPrefix(what, "connections to UNIX sockets of root are not restricted")
		})
		if !s.On || strings.Join(s.Capabilities, " ") != c.text || !s.NoNewPrivs || s.Landlock == 0 || !s.Seccomp || len(s.Missing) > 0 {
			t.Errorf("%v: %+v", c.args, s)
		}
		out, err := a.daemon.command("status").Output()
		if want := fmt.Sprintf("no_new_privs, Landlock ABI %d, seccomp; capabilities %s", s.Landlock, c.text); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: status has no %q: %v\n%s", c.args, want, err, out)
		}
		if got := a.daemon.process("Name"); got != "Name ipoibd" {
			t.Errorf("%s, want that of the program", got)
		}
		a.daemon.stop()
	}
}

// Started by root, the daemon leaves root for another user, who owns its directory, its socket and the
// interface from then on. Restarts and hand-overs keep the user, and root still uses the socket.
func TestUser(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const dir = "/run/ipoibd"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	node := dir + "/tun" // that everyone may open, as udev makes it
	err := errors.Join(
		os.MkdirAll(dir+"/holders", 0o700), // left by a daemon of root's
		unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(10, 200))), os.Chmod(node, 0o666), unix.Mount(node, "/dev/net/tun", "", unix.MS_BIND, ""),
	)
	if err != nil {
		t.Fatal(err)
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	b.join()
	const nobody = "Uid 65534\t65534\t65534\t65534, Gid 65534\t65534\t65534\t65534, "
	want := nobody + fences(unix.CAP_NET_ADMIN, unix.CAP_NET_RAW)
	is := func(when string) {
		t.Helper()
		if got := a.daemon.process("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", when, got, want)
		}
		b.waitReaches(a)
	}
	a.daemon = startDaemon(t, a.Namespace, dir, "--user", "root")
	a.Run("ip", "link", "set", ifName, "up")
	a.addAddrs(ifName)
	requireMistake(t, a.runDaemon("--control", dir+"/second.sock", "--user", "nobody"), "cannot drop root: a daemon that runs as root listens on "+dir+"/control.sock; stop it first; use --user root to keep it")
	a.daemon.stop()
	a.daemon = startDaemon(t, a.Namespace, dir, "--user", "nobody", "--ebpf=false", "--lanes", "4")
	a.waitCarrier()
	is("after one of root")
	for _, path := range []string{dir, dir + "/control.sock", dir + "/holders"} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Uid != 65534 {
			t.Errorf("%s belongs to user %d: %v", path, st.Uid, err)
		}
	}
	a.handOver()
	is("taken over")
	// Without --user, a process of root takes over as the user of the one before.
	d := a.daemon
	at := slices.Index(d.cmd.Args, "--user")
	d.cmd.Args = slices.Delete(d.cmd.Args, at, at+2)
	a.handOver()
	is("taken over without the flag")
	a.daemon.stop()
	a.daemon = startDaemon(t, a.Namespace, dir, "--user", "nobody", "--ebpf=false", "--lanes", "4")
	a.waitCarrier()
	is("adopted")
	requireMistake(t, a.runDaemon("--user", "nobody-of-that-name"), "cannot drop root: --user: user: unknown user nobody-of-that-name; use --user root to keep it")
	requireMistake(t, a.ipoibd("run", "--device", "mlx5_0", "--reset", "driver", "--user", "nobody"), "cannot drop root: user nobody cannot reset a device with reset: driver or pci, because only root may write to its files in /sys; use --user root to keep it")
	requireMistake(t, a.runDaemon("--user", "nobody", "--sandbox=false"), "--user cannot be combined with --sandbox=false")
}

// A socket in a directory of other programs would open that to the daemon.
func TestSandboxRefusesSharedDirectory(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	for _, path := range []string{"/x.sock", "/run/x.sock", "/etc/x.sock"} {
		requireMistake(t, a.runDaemon("--control", path), "the daemon would get access to all of "+filepath.Dir(path)+" through .*such as /run/ipoibd/NAME")
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was created", path)
		}
	}
}

// A descriptor that the daemon was started with does not stay open.
func TestSandboxClosesDescriptors(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(a.dir, "control.sock")
	a.daemon = await(t, a.Namespace, control, a.Command("sh", "-c", `exec 7<"$0" "$@"`, file, os.Getenv(daemonEnv), "run", "--underlay", nstest.Dev, "--control", control))
	fds := fmt.Sprintf("/proc/%d/fd", a.daemon.cmd.Process.Pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink(filepath.Join(fds, e.Name())); to == file {
			t.Errorf("descriptor %s is %s", e.Name(), to)
		}
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
	const says = "this needs privileges that the daemon dropped at its start ("
	for what, needs := range map[string]string{
		lean + ", {name: ib7, pkey: 0x8001}]\n":                                "to load eBPF programs",
		lean + ", {name: ib7, pkey: 0x8001, ebpf: false, follow: true}]\n":     "CAP_NET_BROADCAST, CAP_SYS_ADMIN",
		strings.Replace(lean, "[{", "[{device: rxe0}, {", 1) + "]\n":           "CAP_IPC_LOCK, to read /etc/libibverbs.d, to open devices in /dev/infiniband); restart the daemon",
		strings.Replace(lean, "pkeys", "peers: [b.example], pkeys", 1) + "]\n": "to read /etc/gai.conf, to read /etc/host.conf, to read /etc/hosts, to read /etc/nsswitch.conf, to read /etc/resolv.conf",
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
