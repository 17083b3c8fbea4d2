package process

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const aloneEnv = "TEST_IPOIBD_PROCESS_ALONE"

// alone runs the calling test again in its own process, because the test changes the
// process irreversibly. In the child it returns false. In the parent it returns true
// and fails the test if the child failed. prepare may change the thread that starts the
// child, which then ends, or the child's attributes.
func alone(t *testing.T, prepare func(*syscall.SysProcAttr) error) bool {
	t.Helper()
	if os.Getenv(aloneEnv) != "" {
		return false
	}
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), aloneEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := prepare(cmd.SysProcAttr)
		var out []byte
		if err == nil {
			out, err = cmd.CombinedOutput()
		}
		done <- result{out, err}
	}()
	r := <-done
	t.Logf("in its own process:\n%s", quote(r.out))
	if !bytes.Contains(r.out, []byte("--- PASS: "+t.Name()+" ")) || r.err != nil {
		t.Errorf("the child did not pass: %v", r.err)
	}
	return true
}

// quote marks the child's lines, so that tools which read test output do not take them
// for lines of the parent.
func quote(out []byte) string {
	text := strings.TrimSpace(strings.ReplaceAll(string(out), "\x16", ""))
	return "  | " + strings.ReplaceAll(text, "\n", "\n  | ")
}

// asIs changes nothing.
func asIs(*syscall.SysProcAttr) error { return nil }

// withoutCapability keeps the child from getting CAP_IPC_LOCK.
func withoutCapability(*syscall.SysProcAttr) error {
	if !hasCapability() {
		return nil
	}
	return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0)
}

// inUserNamespace makes the child root of a user namespace: it has the capability,
// which has no effect there.
func inUserNamespace(attr *syscall.SysProcAttr) error {
	attr.Cloneflags = unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	return nil
}

func hasCapability() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
