package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Limits, each about ten times the time measured on an idle machine.
const (
	startLimit   = 10 * time.Second // process started -> status answers
	stopLimit    = 10 * time.Second // SIGTERM -> process gone
	carrierLimit = 10 * time.Second // ib0 set up -> carrier
)

// daemon is one `ipoibd run` of a host.
type daemon struct {
	tb      testing.TB
	ns      *nstest.Namespace
	control string
	cmd     *exec.Cmd
	log     *logBuffer
	exited  chan struct{} // closed once err is set
	err     error         // of waiting for the process
	ended   bool          // the test ended it
}

// startDaemon runs the daemon with further arguments and returns when its
// control socket answers.
func startDaemon(tb testing.TB, ns *nstest.Namespace, dir string, args ...string) *daemon {
	tb.Helper()
	control := filepath.Join(dir, "control.sock")
	run := []string{"run", "--name", ifName, "--underlay", nstest.Dev, "--control", control, "--log-level", "debug"}
	if *fastPath {
		run = append(run, "--fast-path")
	}
	return launch(tb, ns, control, append(run, args...)...)
}

// launch runs ipoibd with all of its arguments and returns when it answers on
// its control socket.
func launch(tb testing.TB, ns *nstest.Namespace, control string, args ...string) *daemon {
	tb.Helper()
	return await(tb, ns, control, ns.Command(os.Getenv(daemonEnv), args...))
}

// await starts a command that runs the daemon, and returns when the daemon answers.
func await(tb testing.TB, ns *nstest.Namespace, control string, cmd *exec.Cmd) *daemon {
	tb.Helper()
	d := &daemon{tb: tb, ns: ns, control: control, log: &logBuffer{}, exited: make(chan struct{}), cmd: cmd}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		tb.Fatalf("start the daemon: %v", err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
	}()
	tb.Cleanup(d.cleanUp)
	eventually(tb, startLimit, "the daemon answers", func() bool {
		if d.gone() {
			tb.Fatalf("the daemon ended: %v\n%s", d.err, d.log)
		}
		return d.command("status").Run() == nil
	})
	return d
}

// command is another command of ipoibd to this daemon.
func (d *daemon) command(args ...string) *exec.Cmd {
	return d.ns.Command(os.Getenv(daemonEnv), append(args, "--control", d.control)...)
}

// status requests the daemon's status, which must follow its schema.
func (d *daemon) status() status {
	d.tb.Helper()
	out, err := d.command("status", "--json").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = exit.Stderr
		}
		d.tb.Fatalf("ipoibd status: %v: %s\n%s", err, out, d.log)
	}
	if err := followsSchema(out); err != nil {
		d.tb.Errorf("%v\n%s", err, out)
	}
	var s status
	if err := json.Unmarshal(out, &s); err != nil {
		d.tb.Fatalf("status is not JSON: %v\n%s", err, out)
	}
	return s
}

// stop ends the daemon cleanly; an exit status other than 0 fails the test.
func (d *daemon) stop() {
	d.tb.Helper()
	d.signal(syscall.SIGTERM)
	if d.err != nil {
		d.tb.Fatalf("the daemon failed: %v\n%s", d.err, d.log)
	}
}

// kill kills the daemon.
func (d *daemon) kill() {
	d.tb.Helper()
	d.signal(syscall.SIGKILL)
}

// signal sends s and waits for the end of the process.
func (d *daemon) signal(s syscall.Signal) {
	d.tb.Helper()
	d.ended = true
	if err := d.cmd.Process.Signal(s); err != nil {
		d.tb.Fatalf("signal the daemon: %v", err)
	}
	select {
	case <-d.exited:
	case <-time.After(stopLimit):
		d.tb.Fatalf("the daemon still runs %v after %v\n%s", stopLimit, s, d.log)
	}
}

func (d *daemon) gone() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// cleanUp waits for the process, which was killed at the end of the test. If
// the test failed, it shows the log, unless the daemon had already ended.
func (d *daemon) cleanUp() {
	<-d.exited
	if d.tb.Failed() && !d.ended {
		d.tb.Logf("log of the daemon:\n%s", d.log)
	}
}

// logBuffer keeps the end of what is written to it, and counts all lines.
type logBuffer struct {
	keep int // how many bytes; 0 means maxLog

	mu    sync.Mutex
	buf   bytes.Buffer
	count int
}

// maxLog bounds the part of a daemon's log that is kept, in bytes.
const maxLog = 64 << 10

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count += bytes.Count(p, []byte{'\n'})
	l.buf.Write(p)
	l.buf.Next(max(0, l.buf.Len()-cmp.Or(l.keep, maxLog)))
	return len(p), nil
}

// lines returns the total number of lines written.
func (l *logBuffer) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
