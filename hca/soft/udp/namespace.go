package udp

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace in which Open was called. It is kept so that later
// sockets are created there, whichever thread the goroutine runs on. In a daemon all
// threads are in one namespace; in tests they are not.
type namespace struct{ file *os.File }

func currentNamespace() (*namespace, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &namespace{file}, nil
}

// do runs f with its thread in the namespace. It needs CAP_SYS_ADMIN only if the thread is
// in another one.
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
		runtime.UnlockOSThread() // otherwise the thread ends with its goroutine
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
