package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name.
type Namespace struct {
	tb   testing.TB
	file *os.File
}

// New creates an empty network namespace in which the loopback interface is up. It
// disappears with the test, unless it still has a process or socket.
func New(tb testing.TB) *Namespace {
	tb.Helper()
	ns, err := newNamespace(tb)
	if err != nil {
		tb.Fatalf("create a network namespace: %v", err)
	}
	tb.Cleanup(func() { _ = ns.file.Close() })
	all.Lock()
	defer all.Unlock()
	all.list = append(all.list, ns)
	return ns
}

// all are the namespaces that New has made.
var all struct {
	sync.Mutex
	list []*Namespace
}

// Counters returns what the kernel has counted in the namespaces of the test, for the report of a lost packet.
func Counters() string {
	all.Lock()
	defer all.Unlock()
	var text strings.Builder
	for i, ns := range all.list {
		out, _ := ns.Command("sh", "-c", "ip -s -s link; tc -s qdisc; nstat -as").CombinedOutput() // of those that are still open
		fmt.Fprintf(&text, "namespace %d:\n%s\n", i, out)
	}
	// The queues of packets between namespaces, which all of them share.
	queues, _ := os.ReadFile("/proc/net/softnet_stat")
	fmt.Fprintf(&text, "softnet_stat:\n%s", queues)
	return text.String()
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

// Do runs f with its thread in the namespace, and returns from there even if f ends the
// goroutine (t.FailNow). Sockets that f opens stay in the namespace. Goroutines that f
// starts do not run in it.
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

// Close releases the namespace before the test ends. The kernel then removes it with
// everything in it, unless it still has a process or socket.
func (ns *Namespace) Close() {
	ns.tb.Helper()
	if err := ns.file.Close(); err != nil {
		ns.tb.Fatalf("close the namespace: %v", err)
	}
}

// Path returns a path of the namespace for other programs, such as nsenter. It is valid
// while the test runs.
func (ns *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd())
}

// Command prepares a program that runs in the namespace. The process ID belongs to the
// program, not of nsenter. It is killed when the test ends, and when the thread ends that has
// started it, so a test must not end threads.
func (ns *Namespace) Command(name string, args ...string) *exec.Cmd {
	args = append([]string{"--net=" + ns.Path(), "--", name}, args...)
	cmd := exec.CommandContext(ns.tb.Context(), "nsenter", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	return cmd
}

// Run runs a program in the namespace and returns its standard output and error. It fails
// the test unless the program exits with 0.
func (ns *Namespace) Run(name string, args ...string) string {
	ns.tb.Helper()
	out, err := ns.Command(name, args...).CombinedOutput()
	if err != nil {
		ns.tb.Fatalf("run %s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// stay locks the goroutine to its thread. back returns the thread to its present
// namespace and unlocks it.
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
			panic(fmt.Sprintf("nstest: return to the previous namespace: %v", err))
		}
		runtime.UnlockOSThread()
	}, nil
}

func openCurrent() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }
