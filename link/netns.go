package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// ErrNoNamespace reports a path that does not lead to a network namespace, or no longer does.
var ErrNoNamespace = errors.New("no such network namespace")

// openNamespace opens the network namespace at a path. The caller closes the file soon, because it
// keeps the namespace alive. Errors: ErrNoNamespace, and the errors of open(2).
func openNamespace(path string) (*os.File, error) {
	// Not os.Open: a FIFO would block it.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%s: %w", path, ErrNoNamespace)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("open the network namespace %s: %w; "+
			"a daemon in its sandbox needs a path below /run/netns, or --sandbox=false", path, err)
	case err != nil:
		return nil, fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	ns := os.NewFile(uintptr(fd), path)
	if !isNamespace(ns) {
		ns.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrNoNamespace)
	}
	return ns, nil
}

// isNamespace reports whether a file is a network namespace. Other files than namespaces do not get the
// ioctl, whose number may mean something else to them.
func isNamespace(f *os.File) bool {
	var at unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &at); err != nil || at.Type != unix.NSFS_MAGIC {
		return false
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	return err == nil && kind == unix.CLONE_NEWNET
}

// checkPassed returns an error unless a file from another process is a network namespace other than that
// of this process, and a path leads to it, as far as this process may examine the path. Errors:
// ErrNoNamespace.
func checkPassed(ns *os.File, path string) error {
	if !isNamespace(ns) {
		return fmt.Errorf("the descriptor passed for %s: %w", path, ErrNoNamespace)
	}
	is, err := ns.Stat()
	if err != nil {
		return err
	}
	own, err := os.Stat("/proc/self/ns/net")
	switch {
	case err != nil:
		return err
	case os.SameFile(is, own):
		return fmt.Errorf("the descriptor passed for %s is the daemon's own network namespace: %w",
			path, ErrNoNamespace)
	case leadsElsewhere(path, is):
		return fmt.Errorf("%s is gone, or leads to another namespace than the one passed: %w", path, ErrNoNamespace)
	}
	return nil
}

// leadsElsewhere reports whether a path is gone, or leads to another file than was. If it cannot be
// examined, as in /proc of a process outside the sandbox, leadsElsewhere returns false.
func leadsElsewhere(path string, was os.FileInfo) bool {
	at, err := os.Stat(path)
	if err != nil {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	}
	return !os.SameFile(at, was)
}

// subscribe returns the notifications of the calling thread's namespace, including the removal of namespace
// IDs, and if permitted the notifications of every namespace that has an ID in this one.
func subscribe() (*kernel.Notifications, error) {
	n, err := kernel.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NSID)
	if err != nil {
		return nil, err
	}
	if err := n.EveryNamespace(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// subscribeHome subscribes in the namespace in which the TAP was opened.
func (d *netdev) subscribeHome() (n *kernel.Notifications, err error) {
	if d.netns == "" {
		return subscribe()
	}
	ns, err := d.tun.lender()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if entered := kernel.InNamespace(ns, func() { n, err = subscribe() }); entered != nil {
		return nil, entered
	}
	return n, err
}

// withdrawn reports whether the interface was lent to a namespace whose path is gone, or leads
// elsewhere. The queues of the TAP keep that namespace alive, so the kernel does not delete the
// interface with it. If the path or the namespace cannot be examined, withdrawn returns false.
func (d *netdev) withdrawn() bool {
	if d.netns == "" {
		return false
	}
	ns, err := d.tun.lender()
	if err != nil {
		return false
	}
	defer ns.Close()
	was, err := ns.Stat()
	return err == nil && leadsElsewhere(d.netns, was)
}
