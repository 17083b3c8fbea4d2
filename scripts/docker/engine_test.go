package docker

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// engine runs containers, by Docker or by Podman.
type engine struct {
	*box
	env     []string // of command
	command func(args ...string) *exec.Cmd
}

// newDocker starts Docker's daemon in a namespace.
func newDocker(tb testing.TB, ns *nstest.Namespace) *engine {
	tb.Helper()
	e := &engine{box: newBox(tb, ns)}
	socket := "unix://" + filepath.Join(e.dir, "docker.sock")
	e.env = append(os.Environ(), "DOCKER_HOST="+socket, "DOCKER_CONFIG="+filepath.Join(e.dir, "config"))
	e.command = func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(tb.Context(), "docker", args...)
		cmd.Env, cmd.WaitDelay = e.env, waitDelay
		return cmd
	}
	daemon := e.inBox("dockerd", "--data-root", filepath.Join(e.dir, "data"), "--host", socket, "--cgroup-parent", e.cgroup)
	log := filepath.Join(e.dir, "log")
	file, err := os.Create(log)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	daemon.Stdout, daemon.Stderr = file, file
	if err := daemon.Start(); err != nil {
		tb.Fatalf("start dockerd (Debian package docker.io): %v", err)
	}
	tb.Cleanup(func() { _ = daemon.Wait() })
	text := func() string { text, _ := os.ReadFile(log); return string(text) }
	eventually(tb, "dockerd answers", func() bool { return e.command("version").Run() == nil }, text)
	return e
}

// Podman's user in the box, and the first of the user IDs of its containers.
const (
	podmanUser = "65500"
	podmanIDs  = "200000"
)

// addUser makes that user known in the box.
const addUser = `
echo "pods:x:$1:$1::$3:/bin/sh" >>/etc/passwd
echo "pods:x:$1:" >>/etc/group
echo "pods:$2:65536" >/etc/subuid
echo "pods:$2:65536" >/etc/subgid
mkdir -p "$3/run"
chown -R "$1:$1" "$3"
mount --make-rshared / # Podman warns otherwise
`

// newPodman prepares a user without privileges who runs containers by Podman. Debian's crun
// cannot use hybrid cgroups; runc can.
func newPodman(tb testing.TB, ns *nstest.Namespace) *engine {
	tb.Helper()
	e := &engine{box: newBox(tb, ns)}
	home := filepath.Join(e.dir, "home")
	if out, err := e.inBox("sh", "-euc", addUser, "sh", podmanUser, podmanIDs, home).CombinedOutput(); err != nil {
		tb.Fatalf("add a user: %v\n%s", err, out)
	}
	e.command = func(args ...string) *exec.Cmd {
		cmd := e.inBox(append([]string{
			"setpriv", "--reuid", podmanUser, "--regid", podmanUser, "--clear-groups",
			"podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--log-level", "error",
		}, args...)...)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"),
			"XDG_CACHE_HOME=", "XDG_CONFIG_HOME=", "XDG_DATA_HOME=") // else it uses the directories of root
		return cmd
	}
	return e
}

// in returns the engine for a subtest, whose failures fail only the subtest.
func (e *engine) in(t *testing.T) *engine {
	box, part := *e.box, *e
	box.tb, part.box = t, &box
	return &part
}

// try runs a command of the engine.
func (e *engine) try(args ...string) error { return e.command(args...).Run() }

// do runs a command of the engine, which must succeed, and returns its standard output without
// the space around it.
func (e *engine) do(args ...string) string {
	e.tb.Helper()
	cmd := e.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		e.tb.Fatalf("%q: %v\n%s%s", args, err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}

// logs returns the log of a container.
func (e *engine) logs(name string) string {
	out, _ := e.command("logs", name).CombinedOutput()
	return string(out)
}

// copyImages copies images from one engine to another.
func copyImages(from, to *engine, images ...string) {
	from.tb.Helper()
	save, load := from.command(append([]string{"save"}, images...)...), to.command("load")
	var stderr bytes.Buffer
	load.Stderr = &stderr
	pipe, err := save.StdoutPipe()
	if err != nil {
		from.tb.Fatal(err)
	}
	load.Stdin = pipe
	if err := save.Start(); err != nil {
		from.tb.Fatal(err)
	}
	if err := load.Run(); err != nil {
		from.tb.Fatalf("load the images: %v\n%s", err, &stderr)
	}
	if err := save.Wait(); err != nil {
		from.tb.Fatalf("save the images: %v", err)
	}
}
