package link

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNoNamespace reports a path that does not lead to a network namespace, or no longer does.
var ErrNoNamespace = errors.New("this process sees no network namespace there")

// openNamespace opens the network namespace at a path. The caller closes the file soon, because it
// keeps the namespace alive. Errors: ErrNoNamespace, ErrPermission.
func openNamespace(path string) (*os.File, error) {
	// Not os.Open: a FIFO would block it.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%s: %w", path, ErrNoNamespace)
	case err != nil:
		return nil, fmt.Errorf("open the network namespace %s: %w", path, classify(err))
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE) // fails for any other kind of file
	if err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, ErrNoNamespace)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// inside calls f on a thread in a network namespace. f is not called if that cannot be entered. If
// the thread cannot return from there, it stays locked to its goroutine and ends with it.
func inside(ns *os.File, f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		here, e := os.Open("/proc/thread-self/ns/net")
		if e == nil {
			defer here.Close()
			e = setns(ns)
		}
		if e != nil {
			err = e
			runtime.UnlockOSThread()
			return
		}
		f()
		if setns(here) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return err
}

func setns(ns *os.File) error {
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}

// lender opens the namespace in which the file of the queue was opened, whatever the path leads to by
// now. The caller closes it.
func (t *TAP) lender() (ns *os.File, err error) {
	err = t.control(func(fd int) error {
		nsfd, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
		if err == nil {
			ns = os.NewFile(uintptr(nsfd), t.netns)
		}
		return os.NewSyscallError("SIOCGSKNS", err)
	})
	return ns, err
}

// subscribeHome subscribes in the namespace in which the TAP was opened.
func (t *TAP) subscribeHome() (e *events, err error) {
	if t.netns == "" {
		return subscribe()
	}
	ns, err := t.lender()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if entered := inside(ns, func() { e, err = subscribe() }); entered != nil {
		return nil, entered
	}
	return e, err
}

// withdrawn reports whether the interface was lent to a namespace whose path is gone, or leads
// elsewhere. The queues of the TAP keep that namespace alive, so the kernel does not delete the
// interface with it. If the path or the namespace cannot be examined, withdrawn returns false.
func (t *TAP) withdrawn() bool {
	if t.netns == "" {
		return false
	}
	at, err := os.Stat(t.netns)
	if err != nil {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	}
	ns, err := t.lender()
	if err != nil {
		return false
	}
	defer ns.Close()
	was, err := ns.Stat()
	return err == nil && !os.SameFile(at, was)
}
