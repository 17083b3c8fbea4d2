package docker

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// TestSidecar has the tests of pods on two hosts with Docker, and on one with Podman.
func TestSidecar(t *testing.T) {
	hostA, hostB := newHosts(t)
	t.Run("readme", func(t *testing.T) { testReadmeExample(t, hostA.in(t)) })
	t.Run("images", func(t *testing.T) { testImages(t, hostA.in(t)) })
	t.Run("traffic", func(t *testing.T) { testTraffic(t, hostA, hostB) })
	t.Run("restarts", func(t *testing.T) { testRestarts(t, hostA, hostB) })
	t.Run("replacements", func(t *testing.T) { testReplacements(t, hostA, hostB) })
	t.Run("privileges", func(t *testing.T) { testPrivileges(t, hostA, hostB) })
	t.Run("macvlan", func(t *testing.T) { testMacvlan(t, hostA, hostB) })
	podman := newPodman(t, nstest.New(t))
	copyImages(hostA, podman, staticImage, debianImage, appImage)
	t.Run("podman", func(t *testing.T) { testPodman(t, podman) })
}

// README's example of a sidecar works as it stands.
func testReadmeExample(t *testing.T, e *engine) {
	script := strings.TrimSpace(readmeExample(t))
	last := strings.LastIndex(script, "\n") + 1
	setUp, ping := script[:last], script[last:]
	run := func(text string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", text)
		cmd.Dir, cmd.Env = root, append(e.env, "MAKEFLAGS=", "MAKELEVEL=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		_ = e.try("rm", "--force", "ipoibd1", "ipoibd2", "pod1", "pod2")
		_ = e.try("network", "rm", "fabric")
	})
	if out, err := run(setUp); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out string
	eventually(t, ping, func() (ok bool) {
		var err error
		out, err = run(ping)
		return err == nil && strings.Contains(out, " 0% packet loss")
	}, func() string { return out + e.logs("ipoibd1") + e.logs("ipoibd2") })
	t.Logf("%s\n%s", script, out)
}

// The images say which version they contain, and for which processor. That for real HCAs can
// load libibverbs.
func testImages(t *testing.T, e *engine) {
	const labels = `{{index .Config.Labels "org.opencontainers.image.version"}} {{index .Config.Labels "org.opencontainers.image.revision"}}`
	version := regexp.MustCompile(`^ipoibd (\S+) \((\S+), `)
	for image, kind := range map[string]string{staticImage: "no cgo", debianImage: "cgo: verbs"} {
		printed := e.do("run", "--rm", "--read-only", image, "version")
		m := version.FindStringSubmatch(printed)
		if m == nil || e.do("inspect", "--format", labels, image) != m[1]+" "+m[2] || !strings.Contains(printed, kind) {
			t.Errorf("%s: %s, labels %s", image, printed, e.do("inspect", "--format", labels, image))
		}
	}
	// The loader reports a library that it cannot preload, and continues.
	cmd := e.command("run", "--rm", "--env", "LD_PRELOAD=libibverbs.so.1", debianImage, "version")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
		t.Errorf("libibverbs in %s: %v\n%s", debianImage, err, out)
	}
	// A newer client, first in the PATH of some machines, may lack BuildKit; that of the packages has it.
	e.makeImage(t, "ARCH=arm64", "ENGINE=/usr/bin/docker")
	if got := e.do("inspect", "--format", "{{.Os}}/{{.Architecture}}", "ipoibd:arm64"); got != "linux/arm64" {
		t.Errorf("the image for arm64 is for %s", got)
	}
	out, err := exec.Command("qemu-aarch64-static", root+"/bin/image/arm64/ipoibd", "version").CombinedOutput()
	if err != nil || !version.Match(out) {
		t.Errorf("the program for arm64: %v\n%s", err, out)
	}
}

// The applications of two pods, which know nothing of ipoibd, reach each other by ping and iperf3.
func testTraffic(t *testing.T, hostA, hostB *engine) {
	a, b := newPods(t, hostA, hostB)
	// One ping for each request, because after several ones ping waits only briefly for the last reply.
	out := a.inApp("sh", "-c", "for n in $(seq 20); do ping -n -c 1 -W 2 "+b.address+" || exit 1; done")
	t.Log(out[strings.LastIndex(out, "\n")+1:])
	t.Logf("iperf3: %.0f Mbit/s, in reverse %.0f Mbit/s", a.throughput(b), a.throughput(b, "--reverse"))
	requirePrivileges(t, a)
}

// The containers of a pod are restarted in turn: the sidecar under a TCP connection, which survives;
// the application, which finds its ib0 again; and the first one, which all others follow.
func testRestarts(t *testing.T, hostA, hostB *engine) {
	a, b := newPods(t, hostA, hostB)
	b.serve(streamPort)
	connection := a.stream(b)
	for _, restart := range []struct {
		name string
		of   func()
	}{
		{"a crash", func() {
			old := a.pid(a.sidecar)
			if out, err := a.inBox("kill", "-KILL", old).CombinedOutput(); err != nil {
				t.Fatalf("kill: %v\n%s", err, out)
			}
			eventually(t, "Docker restarts the sidecar", func() bool { now := a.pid(a.sidecar); return now != old && now != "0" }, nil)
		}},
		{"kill and start", func() { a.do("kill", a.sidecar); a.do("start", a.sidecar) }},
		{"stop and start", func() { a.do("stop", a.sidecar); a.do("start", a.sidecar) }},
		{"restart", func() { a.do("restart", a.sidecar) }},
		{"a killed one's upgrade", func() { a.replace("kill", debianImage) }},
		{"a stopped one's upgrade", func() { a.replace("stop", staticImage) }},
		{"the other end's restart", func() { b.do("restart", b.sidecar) }},
	} {
		restart.of()
		connection.requireMoves(restart.name)
		a.waitReaches(b)
	}

	sidecar := a.pid(a.sidecar)
	a.do("restart", a.app())
	a.waitReaches(b)
	if now := a.pid(a.sidecar); now != sidecar {
		t.Error("the restart of the application has restarted the sidecar")
	}

	// Docker makes another network namespace for the first container; the others stay in the old
	// one until they are restarted as well.
	a.do("restart", a.name)
	a.do("restart", a.app(), a.sidecar)
	a.waitReaches(b)
}

// hostile is the user of an application without privileges.
const hostile = "65534"

// testPrivileges tries, as an application, to read the frames of ib0 and to give the sidecar
// commands.
func testPrivileges(t *testing.T, hostA, hostB *engine) {
	a, b := newPods(t, hostA, hostB)
	requireRefused(t, a)

	// Root in the application's container may make a device node, and has the user of the TAP.
	intrude := func(flags ...string) (string, error) {
		args := append([]string{"run", "--rm", "--network", "container:" + a.name, "--env", intruderEnv + "=1"}, flags...)
		out, err := a.command(append(args, appImage, intruder)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, _ := intrude("--cap-drop", "MKNOD"); !strings.Contains(out, "operation not permitted") && !strings.Contains(out, "no such file") {
		t.Errorf("root without CAP_MKNOD: %s, want no access", out)
	}
	for _, flags := range [][]string{nil, {"--device", "/dev/net/tun"}, {"--device", "/dev/net/tun", "--cap-drop", "ALL", "--cap-add", "NET_ADMIN"}} {
		noticed := func() int { return strings.Count(a.logs(a.sidecar), "another process has attached") }
		before := noticed()
		out, err := intrude(flags...)
		t.Logf("root with %q: %s", flags, out)
		if err == nil && noticed() == before {
			t.Errorf("root with %q attached to ib0, and the daemon has not noticed", flags)
		}
	}
	a.waitReaches(b)
}

// requireRefused checks that an application without privileges can neither attach to ib0 nor use
// the control socket, even if its container has the device node and the socket's directory.
func requireRefused(t *testing.T, p *pod) {
	t.Helper()
	out, _ := p.command("run", "--rm", "--network", "container:"+p.name, "--user", hostile, "--device", "/dev/net/tun", "--env", intruderEnv+"=1", appImage, intruder).CombinedOutput()
	if !strings.Contains(string(out), "operation not permitted") {
		t.Errorf("user %s attaches to ib0: %s, want no permission", hostile, out)
	}
	out, err := p.command("run", "--rm", "--user", hostile, "--volume", p.control()+":/run/ipoibd", staticImage, "status").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "only root and the user the daemon runs as may use this socket") {
		t.Errorf("user %s commands the sidecar: %v, %s, want no permission", hostile, err, out)
	}
}

// requirePrivileges checks what the sidecar's process may do, by the kernel's view of it.
func requirePrivileges(t *testing.T, p *pod) {
	t.Helper()
	status := p.do("run", "--rm", "--pid", "container:"+p.sidecar, appImage, "cat", "/proc/1/status")
	for _, want := range []string{"Name:\tipoibd", "NoNewPrivs:\t1", "CapEff:\t" + netAdmin, "CapPrm:\t" + netAdmin, "CapBnd:\t" + netAdmin} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("the sidecar's process lacks %q:\n%s", want, status)
		}
	}
}

// netAdmin is the set that consists of CAP_NET_ADMIN, number 12.
const netAdmin = "0000000000001000"

// testPodman has two pods of a user without privileges, who is root of a user namespace.
func testPodman(t *testing.T, e *engine) {
	e = e.in(t)
	e.do("network", "create", "fabric")
	a := e.newPod(t, "pod1", "10.9.0.1", "--network", "fabric")
	b := e.newPod(t, "pod2", "10.9.0.2", "--network", "fabric")
	a.waitReaches(b)
	if got := strings.Fields(a.inApp("cat", "/proc/self/uid_map")); len(got) < 2 || got[1] != podmanUser {
		t.Errorf("the user namespace maps %q, want root to be user %s", got, podmanUser)
	}
	requirePrivileges(t, a)
	b.serve(streamPort)
	t.Logf("iperf3: %.0f Mbit/s", a.throughput(b))
	connection := a.stream(b)
	for _, end := range []string{"kill", "stop"} {
		a.do(end, a.sidecar)
		a.do("start", a.sidecar)
		connection.requireMoves(end)
	}
	a.replace("stop", debianImage)
	connection.requireMoves("an upgrade")
	requireRefused(t, a)
}
