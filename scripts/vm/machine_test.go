package vm

import (
	"bytes"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
)

// machine runs the programs of a scenario: a guest, or a namespace of this machine.
// Its failures fail the test.
type machine interface {
	runner
	// Try reports whether a program exits with 0.
	Try(name string, args ...string) bool
	// start starts a program, which ends with the test at the latest.
	start(name string, args ...string) process
	// runDir is a folder for the sockets of our programs.
	runDir() string
}

// runner is the common part of a machine and a guest.
type runner interface {
	// Run runs a program and returns its standard output; it must exit with 0.
	Run(name string, args ...string) string
}

// process is a running program.
type process interface {
	// Stdout and Stderr return its output so far.
	Stdout() string
	Stderr() string
	Signal(s syscall.Signal)
	Exited() <-chan struct{}
}

// inGuest is a guest as a machine.
type inGuest struct{ *guest.Guest }

func (m inGuest) start(name string, args ...string) process { return m.Start(name, args...) }
func (m inGuest) runDir() string                            { return "/run/ipoibd" }

// inNamespace is a namespace of this machine as a machine. Its programs of this tree
// are the binaries that the guests use.
type inNamespace struct {
	ns  *nstest.Namespace
	tb  testing.TB
	dir string
}

// newHost creates a namespace on a segment, as host 1 beside guest 0. Its frames on
// the segment look as on a wire: segmented and with checksums.
func newHost(tb testing.TB, segment *nstest.Segment) inNamespace {
	tb.Helper()
	ns := segment.Host(1)
	ns.Run("ethtool", "-K", nstest.Dev, "tx", "off")
	return inNamespace{ns, tb, tb.TempDir()}
}

func (m inNamespace) runDir() string { return m.dir }

func (m inNamespace) command(name string, args ...string) *exec.Cmd {
	if name == "ipoibd" || name == "numbered" {
		name = guest.Program(name)
	}
	return m.ns.Command(name, args...)
}

func (m inNamespace) Run(name string, args ...string) string {
	m.tb.Helper()
	cmd := m.command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		m.tb.Fatalf("run %s %q: %v\n%s%s", name, args, err, out, &stderr)
	}
	return string(out)
}

func (m inNamespace) Try(name string, args ...string) bool {
	return m.command(name, args...).Run() == nil
}

func (m inNamespace) start(name string, args ...string) process {
	m.tb.Helper()
	p := &hostProcess{tb: m.tb, cmd: m.command(name, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	if err := p.cmd.Start(); err != nil {
		m.tb.Fatalf("start %s %q: %v", name, args, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	m.tb.Cleanup(func() { <-p.exited }) // the namespace kills it
	return p
}

// hostProcess is a program in a namespace.
type hostProcess struct {
	tb          testing.TB
	cmd         *exec.Cmd
	exited      chan struct{}
	out, errOut lockedBuffer
}

func (p *hostProcess) Stdout() string          { return p.out.String() }
func (p *hostProcess) Stderr() string          { return p.errOut.String() }
func (p *hostProcess) Exited() <-chan struct{} { return p.exited }

func (p *hostProcess) Signal(s syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatalf("signal %s: %v", p.cmd, err)
	}
}

// lockedBuffer is written by a process and read by a test.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// awaitExit waits for the end of a process.
func awaitExit(tb testing.TB, p process) {
	tb.Helper()
	select {
	case <-p.Exited():
	case <-time.After(patience):
		tb.Fatalf("the process did not exit within %v\n%s%s", patience, p.Stdout(), p.Stderr())
	}
}

// patience is the limit for events that take at most two seconds: a program
// answers or ends, ib0 gets carrier, others answer.
const patience = 20 * time.Second

// eventually polls until ok; after patience the test fails.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	if !nstest.Poll(patience, ok) {
		tb.Fatalf("%s: not within %v", what, patience)
	}
}
