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

// netdev is an interface as netlink shows it, in whichever network namespace it is.
type netdev struct {
	tun   *tun
	netns string      // Spec.Netns
	nl    *rtnl       // in the network namespace in which the interface was opened
	home  os.FileInfo // that namespace
}

// visit calls f with the interface and a netlink socket of its current network namespace. f
// must not keep either. Errors: ErrGone, ErrClosed, ErrPermission if the namespace may not
// be entered, and the errors of f.
func (d *netdev) visit(f func(r *rtnl, l netlink.Link) error) error {
	for range visitTries {
		found, err := d.visitOnce(f)
		if found || err != nil {
			return d.tun.ioError(err)
		}
	}
	return errElusive
}

func (d *netdev) visitOnce(f func(r *rtnl, l netlink.Link) error) (found bool, err error) {
	ns, err := d.tun.namespace()
	if err != nil {
		return false, err
	}
	defer ns.Close()
	name, err := d.tun.currentName()
	if err != nil {
		return false, err
	}
	r, leave, err := d.netlinkIn(ns)
	if err != nil {
		return false, err
	}
	defer leave()
	l, err := r.byName(name)
	if l == nil || err != nil {
		return false, err
	}
	if found, err = d.isAt(ns, name, l); !found || err != nil {
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
func (d *netdev) isAt(ns *os.File, name string, l netlink.Link) (bool, error) {
	if !isMultiQueueTAP(l) || queues(l) == 0 {
		return false, nil
	}
	var mac [6]byte
	err := d.tun.control(func(fd int) (err error) { mac, err = queueMAC(fd); return err })
	if err != nil {
		return false, err
	}
	nowName, err := d.tun.currentName()
	if err != nil {
		return false, err
	}
	nowAt, err := d.tun.place()
	if err != nil {
		return false, err
	}
	at, err := ns.Stat()
	hw := l.Attrs().HardwareAddr
	n := min(len(hw), len(mac)) // a changed link type changes the length
	return err == nil && nowName == name && os.SameFile(nowAt, at) && bytes.Equal(mac[:n], hw[:n]), err
}

// Elsewhere reports whether the interface has another name or is in another network namespace than
// when it was opened, so that Open would not find it.
func (t *TAP) Elsewhere() bool {
	name, err := t.tun.currentName()
	if err != nil {
		return false
	}
	at, err := t.tun.place()
	return err == nil && (name != t.tun.name || !os.SameFile(at, t.dev.home))
}

// netlinkIn returns a netlink socket in a namespace and a function that the caller must call
// afterwards. At home the socket is the TAP's own. Elsewhere a socket is opened for each
// visit, and the namespace gets an ID here, without which its messages would not reach the
// sockets of Watch.
func (d *netdev) netlinkIn(ns *os.File) (r *rtnl, leave func(), err error) {
	id, err := ns.Stat()
	if err != nil {
		return nil, nil, err
	}
	if os.SameFile(id, d.home) {
		return d.nl, func() {}, nil
	}
	err = d.nl.set(unix.RTM_NEWNSID, nl.NewRtGenMsg(), // rtnetlink(7)
		uint32Attr(netlink.NETNSA_FD, uint32(ns.Fd())), uint32Attr(netlink.NETNSA_NSID, assignAny))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("give the network namespace an ID: %w", err)
	}
	if entered := kernel.InNamespace(ns, func() { r, err = openRtnl() }); entered != nil || err != nil {
		return nil, nil, fmt.Errorf("enter the network namespace: %w", errors.Join(entered, err))
	}
	return r, r.close, nil
}
