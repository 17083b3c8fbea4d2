package rdma

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inUserNamespace marks the test's child process.
const inUserNamespace = "TEST_IPOIBD_RDMA_USERNS"

// In a user namespace the sockets open but no events arrive, so Watch returns
// ErrUserNamespace (R24).
func TestR24NoEventsInAUserNamespace(t *testing.T) {
	if os.Getenv(inUserNamespace) != "" {
		w, err := newWatcher(subsystems)
		if err != nil {
			t.Fatalf("the sockets cannot be opened: %v", err)
		}
		w.close()
		if _, err := Watch(t.Context()); !errors.Is(err, ErrUserNamespace) {
			t.Fatalf("Watch: %v, want ErrUserNamespace", err)
		}
		return
	}
	for name, flags := range map[string]uintptr{
		"with a network namespace of its own": syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		"in the network namespace of another": syscall.CLONE_NEWUSER,
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestR24NoEventsInAUserNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), inUserNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  flags,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
