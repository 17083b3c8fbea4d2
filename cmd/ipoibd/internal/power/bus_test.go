package power

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// ample bounds every wait of a test. The measured times are ten times shorter.
const ample = 20 * time.Second

// daemonConfig allows every user everything.
const daemonConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
`

// busDaemon is a dbus-daemon for one test, and its socket.
type busDaemon struct {
	t      *testing.T
	socket string
	config string
	cmd    *exec.Cmd
	out    bytes.Buffer
}

// newBus chooses the address of a bus and passes it to the watcher, but does not start the
// bus. The test must not run in parallel with others.
func newBus(t *testing.T) *busDaemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus-") //nolint:usetesting // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &busDaemon{t: t, socket: filepath.Join(dir, "bus"), config: filepath.Join(dir, "config")}
	must(t, os.WriteFile(b.config, fmt.Appendf(nil, daemonConfig, b.socket), 0o600))
	t.Setenv(addressEnv, "unix:path="+b.socket+",guid=6c0f3ec8a63ab3f3a1cd1e24652f5a5c")
	return b
}

// start starts the daemon. It ends with the test.
func (b *busDaemon) start() {
	b.t.Helper()
	b.cmd = exec.Command("dbus-daemon", "--config-file="+b.config, "--nofork", "--nopidfile", "--nosyslog")
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends, not the process
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(b.t, b.cmd.Start())
	runtime.UnlockOSThread()
	b.t.Cleanup(b.stop)
	eventually(b.t, "dbus-daemon listens", func() bool {
		c, err := net.Dial("unix", b.socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// stop kills the daemon, if it runs.
func (b *busDaemon) stop() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	b.cmd = nil
	os.Remove(b.socket)
	if b.t.Failed() {
		b.t.Logf("dbus-daemon: %s", b.out.String())
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(ample); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, ample)
		}
	}
}

// usage counts resources that may leak.
type usage struct{ goroutines, descriptors int }

func inUse(t *testing.T) usage {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return usage{runtime.NumGoroutine(), len(list)}
}

// check waits until no more is in use than in u.
func (u usage) check(t *testing.T) {
	t.Helper()
	eventually(t, fmt.Sprintf("no more in use than %+v", u), func() bool {
		now := inUse(t)
		return now.goroutines <= u.goroutines && now.descriptors <= u.descriptors
	})
}
