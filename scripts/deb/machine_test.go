package deb

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	limit = 2 * time.Minute // of every wait; ten times what is seen on a busy machine
	image = "debian"
	name  = "machine"
)

// packages are those of the machine, besides Debian's essential ones.
const packages = "systemd,systemd-sysv,dbus,polkitd,udev,iproute2,iputils-ping,iperf3,init-system-helpers,libc6"

// machine is a container with systemd, or a Docker daemon without one yet.
type machine struct {
	whole *testing.T // of all steps
	t     *testing.T // of the present step
	sock  string
	spawn *exec.Cmd
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !nstest.Poll(limit, ok) {
		t.Fatalf("%s: not within %v", what, limit)
	}
}

// output runs a program of this machine and returns its standard output.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// debian returns the tar file of the machine's root, which it makes if the cache does not have it.
func debian(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(packages))
	path := filepath.Join(cache, "ipoibd", "deb", "bookworm-"+hex.EncodeToString(sum[:4])+".tar")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	output(t, "mmdebstrap", "--quiet", "--variant=essential", "--include="+packages, "bookworm", path+".new.tar")
	t.Logf("mmdebstrap took %v", time.Since(start).Round(time.Second))
	if err := os.Rename(path+".new.tar", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// boot starts the machine. Its eth0 is joined to pod0 here.
func boot(t *testing.T, root string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "deb-") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{whole: t, t: t, sock: filepath.Join(dir, "sock")}
	// The control groups are mounted only in the namespace that the test has left.
	m.spawn = exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", os.Getppid()), "--", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"dockerd", "--host=unix://"+m.sock, "--data-root="+dir+"/data", "--exec-root="+dir+"/exec", "--pidfile="+dir+"/pid",
		"--log-level=warn", "--storage-driver=overlay2", "--bridge=none", "--iptables=false", "--ip6tables=false")
	var log bytes.Buffer
	m.spawn.Stdout, m.spawn.Stderr = &log, &log
	m.spawn.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.spawn.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.spawn.Wait()
	}()
	t.Cleanup(func() {
		_ = m.docker("rm", "--force", name).Run()
		_ = m.spawn.Process.Kill()
		<-ended
		_ = os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("dockerd:\n%s", log.String())
		}
	})
	eventually(t, "Docker answers", func() bool {
		select {
		case <-ended:
			t.Fatal("dockerd has ended")
		default:
		}
		return m.docker("version").Run() == nil
	})
	m.must(m.docker("import", root, image))
	m.must(m.docker("run", "--detach", "--name="+name, "--hostname="+name, "--network=none", "--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp",
		"--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined",
		"--device=/dev/net/tun", "--device=/dev/fuse", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", "--cgroupns=host", "--env=container=docker",
		image, "/sbin/init"))
	m.join()
	eventually(t, "systemd has started", func() bool {
		out, _ := m.in("systemctl", "is-system-running").Output()
		state := strings.TrimSpace(string(out))
		return state == "running" || state == "degraded"
	})
	return m
}

// join puts one end of a veth into the machine, as eth0 with the address 192.0.2.1, and keeps the
// other as pod0 with 192.0.2.2.
func (m *machine) join() {
	m.t.Helper()
	pid := strings.TrimSpace(m.must(m.docker("inspect", "--format={{.State.Pid}}", name)))
	output(m.t, "ip", "link", "add", "pod0", "type", "veth", "peer", "name", "pod1")
	output(m.t, "nsenter", fmt.Sprintf("--pid=/proc/%d/ns/pid_for_children", m.spawn.Process.Pid), "ip", "link", "set", "pod1", "netns", pid, "name", "eth0")
	output(m.t, "ip", "address", "add", "192.0.2.2/24", "dev", "pod0")
	output(m.t, "ip", "link", "set", "pod0", "up")
	m.run("ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
	m.run("ip", "link", "set", "eth0", "up")
}

func (m *machine) docker(args ...string) *exec.Cmd {
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+m.sock)
	return cmd
}

// in returns a command in the machine, as root.
func (m *machine) in(args ...string) *exec.Cmd {
	return m.docker(append([]string{"exec", name}, args...)...)
}

// run runs a command in the machine and returns its output.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	return m.must(m.in(args...))
}

func (m *machine) must(cmd *exec.Cmd) string {
	m.t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// property returns a property of the service, as systemd knows it.
func (m *machine) property(what string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "--property="+what, "--value", "ipoibd.service"))
}

// write creates a file in the machine.
func (m *machine) write(path, text string) {
	m.t.Helper()
	cmd := m.docker("exec", "--interactive", name, "sh", "-c", `mkdir -p "$(dirname "$1")" && cat >"$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(text)
	m.must(cmd)
}
