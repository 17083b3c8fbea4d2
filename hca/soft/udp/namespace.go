package udp

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace in which Open was called. Sockets that are made later
// belong to it too, no matter on which thread. A daemon uses only one namespace; in tests
// threads differ.
type namespace struct{ file *os.File }

func currentNamespace() (*namespace, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &namespace{file}, nil
}

// do runs f on a thread in the namespace. It needs CAP_SYS_ADMIN only if the thread is in
// another namespace.
func (n *namespace) do(f func() error) error {
	runtime.LockOSThread()
	back, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.file.Close()
	want, errWant := n.file.Stat()
	have, errHave := back.file.Stat()
	if errWant == nil && errHave == nil && os.SameFile(want, have) {
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
