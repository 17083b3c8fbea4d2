package link

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// visitTries bounds how often the search for an interface is repeated because the interface
// was moved or renamed during the search.
const visitTries = 5

// assignAny makes the kernel choose the ID of a namespace (rtnetlink(7), NETNSA_NSID).
const assignAny = math.MaxUint32 // -1

var errElusive = errors.New("the interface keeps being moved or renamed")

// visit calls f with the interface and a netlink socket of its current network namespace. f
// must not keep either. Errors: ErrGone, ErrClosed, ErrPermission if the namespace may not
// be entered, and the errors of f.
func (t *TAP) visit(f func(r *rtnl, l netlink.Link) error) error {
	for range visitTries {
		found, err := t.visitOnce(f)
		if found || err != nil {
			return t.ioError(err)
		}
	}
	return errElusive
}

func (t *TAP) visitOnce(f func(r *rtnl, l netlink.Link) error) (found bool, err error) {
	ns, err := t.namespace()
	if err != nil {
		return false, err
	}
	defer ns.Close()
	name, err := t.currentName()
	if err != nil {
		return false, err
	}
	r, leave, err := t.netlinkIn(ns)
	if err != nil {
		return false, err
	}
	defer leave()
	l, err := r.byName(name)
	if l == nil || err != nil {
		return false, err
	}
	if found, err = t.isAt(ns, name, l); !found || err != nil {
		return false, err
	}
	if err = f(r, l); errors.Is(err, unix.ENODEV) { // moved in the meantime
		return false, nil
	}
	return true, err
}

// isAt reports whether the interface that was found by its name in a namespace is that of
// this queue. It may have been moved or renamed since its namespace and name were read, and
// another interface may have taken its place. So isAt reads them from the queue again. The
// interface must be a TAP with a queue, and have the MAC of the queue's interface.
func (t *TAP) isAt(ns *os.File, name string, l netlink.Link) (bool, error) {
	if !isMultiQueueTAP(l) || queues(l) == 0 {
		return false, nil
	}
	var mac [6]byte
	err := t.control(func(fd int) (err error) { mac, err = queueMAC(fd); return err })
	if err != nil {
		return false, err
	}
	nowName, err := t.currentName()
	if err != nil {
		return false, err
	}
	nowAt, err := t.place()
	if err != nil {
		return false, err
	}
	at, err := ns.Stat()
	hw := l.Attrs().HardwareAddr
	n := min(len(hw), len(mac)) // a changed link type changes the length
	return err == nil && nowName == name && os.SameFile(nowAt, at) && bytes.Equal(mac[:n], hw[:n]), err
}

// place identifies the current network namespace of the interface.
func (t *TAP) place() (os.FileInfo, error) {
	ns, err := t.namespace()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return ns.Stat()
}

// Elsewhere reports whether the interface has another name or is in another network namespace than
// when it was opened, so that Open would not find it.
func (t *TAP) Elsewhere() bool {
	name, err := t.currentName()
	if err != nil {
		return false
	}
	at, err := t.place()
	return err == nil && (name != t.name || !os.SameFile(at, t.home))
}

// namespace opens the current network namespace of the interface. The caller closes the file
// soon, because it keeps the namespace alive. The kernel returns EINVAL while it destroys
// the namespace.
func (t *TAP) namespace() (ns *os.File, err error) {
	err = t.control(func(fd int) error {
		nsfd, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
		if err != nil {
			return os.NewSyscallError("TUNGETDEVNETNS", err)
		}
		ns = os.NewFile(uintptr(nsfd), "net namespace")
		return nil
	})
	return ns, err
}

// currentName returns the current name of the queue's interface. EBADFD means that the
// interface was deleted.
func (t *TAP) currentName() (name string, err error) {
	err = t.control(func(fd int) error {
		req, err := unix.NewIfreq(t.name)
		if err != nil {
			return err
		}
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, req)
		name = req.Name()
		return os.NewSyscallError("TUNGETIFF", err)
	})
	return name, err
}

// netlinkIn returns a netlink socket in a namespace and a function that the caller must call
// afterwards. At home the socket is the TAP's own. Elsewhere a socket is opened for each
// visit, and the namespace gets an ID here, without which its messages would not reach the
// sockets of Watch.
func (t *TAP) netlinkIn(ns *os.File) (r *rtnl, leave func(), err error) {
	id, err := ns.Stat()
	if err != nil {
		return nil, nil, err
	}
	if os.SameFile(id, t.home) {
		return t.nl, func() {}, nil
	}
	err = t.nl.set(unix.RTM_NEWNSID, nl.NewRtGenMsg(), // rtnetlink(7)
		uint32Attr(netlink.NETNSA_FD, uint32(ns.Fd())), uint32Attr(netlink.NETNSA_NSID, assignAny))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("give the network namespace an ID: %w", err)
	}
	if entered := kernel.InNamespace(ns, func() { r, err = openRtnl() }); entered != nil || err != nil {
		return nil, nil, fmt.Errorf("enter the network namespace: %w", errors.Join(entered, err))
	}
	return r, r.close, nil
}
