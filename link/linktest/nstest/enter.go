package nstest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv marks the re-executed process; its value is the test's name.
const childEnv = "TEST_IPOIBD_NSTEST_CHILD"

// deadlineMargin is how much earlier than the parent the child times out, so
// that its goroutine dump is still reported.
const deadlineMargin = 2 * time.Second

// waitDelay bounds the wait for pipes that a grandchild keeps open.
const waitDelay = 5 * time.Second

var setUp = sync.OnceValue(setUpChild)

// Enter runs the calling test again in a child process with its own
// namespaces. In the parent it blocks until the child has ended, adopts its
// result and returns true; the caller then returns at once. In the child it
// returns false. Subtests of a test that has entered run in the same namespaces.
// The parent's tests run in parallel, because most of them wait most of the time.
func Enter(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childEnv) == "" {
		t.Parallel()
	}
	return EnterAlone(t)
}

// EnterAlone is [Enter] for a test that no other test of its package may run beside: it measures, or uses up what all
// namespaces share, such as the processors, the kernel's table of neighbours, or its lock of all interfaces (rtnl).
func EnterAlone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		if err := setUp(); err != nil {
			t.Fatalf("set up namespaces: %v", err)
		}
		return false
	}
	runChild(t)
	return true
}

// skipped matches the result of a test, or of a subtest, that was skipped.
var skipped = regexp.MustCompile(`(?m)^ *--- SKIP: `)

func runChild(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	cmd := exec.Command(exe, childArgs(t)...)
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	cmd.SysProcAttr = cloneAttr()
	cmd.WaitDelay = waitDelay
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends, not the process
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	passed := bytes.Contains(out, []byte("--- PASS: "+t.Name()+" "))
	skips := skipped.Match(out)
	if err != nil || !passed || skips || testing.Verbose() {
		t.Logf("in its own namespaces:\n%s", indent(out))
	}
	switch {
	case err != nil:
		t.Fatalf("run in new namespaces (this requires root, or unprivileged user namespaces): %v", err)
	case skips:
		t.Fatal("the child skipped the test, or a subtest, which the parent's result would hide")
	case !passed:
		t.Fatal("the child did not run the test to its end")
	}
}

// indent marks the child's lines, so that tools which read test output do not take them
// for lines of the parent.
func indent(out []byte) string {
	text := strings.TrimRight(strings.ReplaceAll(string(out), "\x16", ""), "\n")
	return "  | " + strings.ReplaceAll(text, "\n", "\n  | ")
}

// childArgs selects exactly the calling test and passes on the flags of the run: the
// remaining time, the coverage directory, from which go test merges the child's
// counters, the form of the tests, and the package's own flags.
func childArgs(t *testing.T) []string {
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v", "-test.count=1"}
	if deadline, ok := t.Deadline(); ok {
		left := max(time.Until(deadline)-deadlineMargin, time.Second)
		args = append(args, "-test.timeout="+left.String())
	}
	flag.Visit(func(f *flag.Flag) {
		if own := !strings.HasPrefix(f.Name, "test."); own || f.Name == "test.gocoverdir" || f.Name == "test.short" {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// pattern returns the -test.run expression that matches only one test or subtest.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// cloneAttr requests the namespaces. It requests a user namespace, with the caller as
// root, only if the others require it.
func cloneAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if !capable(unix.CAP_SYS_ADMIN) {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// capable reports whether the process has an effective capability.
func capable(capability int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}
