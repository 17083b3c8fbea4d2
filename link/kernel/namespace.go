package kernel

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace opens the network namespace of the calling thread. The file keeps the namespace alive.
func Namespace() (*os.File, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return ns, nil
}

// InNamespace calls f on a thread in a network namespace: on the calling one if it is there. Otherwise
// it needs CAP_SYS_ADMIN. f is not called if the namespace cannot be entered.
func InNamespace(ns *os.File, f func()) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := Namespace()
	if err != nil {
		return err
	}
	same, err := sameFile(here, ns)
	here.Close()
	if err != nil {
		return err
	}
	if same {
		f()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = visit(ns, f)
	}()
	<-done
	return err
}

// visit calls f on a thread that enters a network namespace for it. If the thread cannot return from there, it
// stays locked to its goroutine and ends with it.
func visit(ns *os.File, f func()) error {
	runtime.LockOSThread()
	here, err := Namespace()
	if err == nil {
		defer here.Close()
		err = enter(ns)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	f()
	if enter(here) == nil {
		runtime.UnlockOSThread()
	}
	return nil
}

func enter(ns *os.File) error {
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}

func sameFile(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	if err != nil {
		return false, err
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y), err
}
