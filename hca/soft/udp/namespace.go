package udp

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace, kept so that a socket made later lies in
// the one that Open was called in, whatever thread the goroutine is on then. In
// a daemon there is but one; threads differ in tests.
type namespace struct{ file *os.File }

func currentNamespace() (*namespace, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &namespace{file}, nil
}

// do runs f with its thread in the namespace. Only where the thread is in
// another one does it need CAP_SYS_ADMIN.
func (n *namespace) do(f func() error) error {
	runtime.LockOSThread()
	back, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.file.Close()
	if n.equal(back) {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := n.enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back.enter() == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine
	}
	return err
}

func (n *namespace) enter() error {
	return os.NewSyscallError("setns", unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET))
}

func (n *namespace) equal(m *namespace) bool {
	a, errA := n.file.Stat()
	b, errB := m.file.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}
