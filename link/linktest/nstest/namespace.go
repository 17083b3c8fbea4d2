package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name.
type Namespace struct {
	tb   testing.TB
	file *os.File
}

// New makes an empty network namespace with its loopback up. It goes with the
// test, unless a process or socket still lives in it.
func New(tb testing.TB) *Namespace {
	tb.Helper()
	ns, err := newNamespace(tb)
	if err != nil {
		tb.Fatalf("make a network namespace: %v", err)
	}
	tb.Cleanup(func() { _ = ns.file.Close() })
	return ns
}

func newNamespace(tb testing.TB) (*Namespace, error) {
	back, err := stay()
	if err != nil {
		return nil, err
	}
	defer back()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := loopbackUp(); err != nil {
		return nil, err
	}
	file, err := openCurrent()
	return &Namespace{tb: tb, file: file}, err
}

// Do runs f with its thread in the namespace, and comes back also when f ends
// the goroutine (t.FailNow). Sockets that f opens belong to the namespace for
// good; goroutines that f starts do not run in it.
func (ns *Namespace) Do(f func()) {
	ns.tb.Helper()
	back, err := stay()
	if err != nil {
		ns.tb.Fatalf("leave the namespace: %v", err)
	}
	defer back()
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		ns.tb.Fatalf("enter the namespace: %v", err)
	}
	f()
}

// Close gives the namespace up before the test ends: the kernel takes it away,
// with what is in it, unless a process or socket still lives there.
func (ns *Namespace) Close() {
	ns.tb.Helper()
	if err := ns.file.Close(); err != nil {
		ns.tb.Fatalf("close the namespace: %v", err)
	}
}

// Path names the namespace for other programs, such as nsenter, as long as the
// test lives.
func (ns *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd())
}

// Command prepares a program that runs in the namespace; its process ID is the
// program's own. It is killed when the test ends.
func (ns *Namespace) Command(name string, args ...string) *exec.Cmd {
	args = append([]string{"--net=" + ns.Path(), "--", name}, args...)
	cmd := exec.CommandContext(ns.tb.Context(), "nsenter", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	return cmd
}

// Run runs a program in the namespace, returns what it wrote to both outputs,
// and fails the test unless it exits with 0.
func (ns *Namespace) Run(name string, args ...string) string {
	ns.tb.Helper()
	out, err := ns.Command(name, args...).CombinedOutput()
	if err != nil {
		ns.tb.Fatalf("run %s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// stay locks the goroutine to its thread; back returns the thread to the
// namespace that it is in now and unlocks it.
func stay() (back func(), err error) {
	runtime.LockOSThread()
	here, err := openCurrent()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return func() {
		defer here.Close()
		if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(fmt.Sprintf("nstest: return to the namespace before: %v", err))
		}
		runtime.UnlockOSThread()
	}, nil
}

func openCurrent() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }
