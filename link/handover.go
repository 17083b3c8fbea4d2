package link

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// handedTAP is the part "tap" of a capsule: a TAP, whose queues are its descriptors, in order.
type handedTAP struct {
	Name          string   `json:"name"` // with which it was opened
	Netns         string   `json:"netns"`
	QueueLen      int      `json:"txqueuelen"`
	LargeQueueLen int      `json:"large_txqueuelen"`
	Carrier       bool     `json:"carrier"`
	Offloads      Offloads `json:"offloads"` // TUN_F_*
}

// Export puts what another process needs to continue the interface into a capsule: the part "tap". The state of ib0
// does not change. Meanwhile no goroutine may call the other methods.
func (t *TAP) Export(w *capsule.Writer) {
	t.keep.Lock()
	defer t.keep.Unlock()
	queues := make([]syscall.Conn, len(t.tun.queues))
	for i, q := range t.tun.queues {
		queues[i] = q.file
	}
	w.Put("tap", handedTAP{t.tun.name, t.dev.netns, t.lens.small, t.lens.large, t.wantCarrier, t.offloads}, queues...)
}

// GiveUp leaves ib0 to the process that continues it: from then on, Close only closes the queues.
func (t *TAP) GiveUp() {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.given = true
}

// Own undoes GiveUp. The next inspection names this process as the holder.
func (t *TAP) Own() {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.given = false
}

// Import continues the interface of another process. It changes nothing: until Own, Close only closes the queues.
// Errors: capsule.ErrMissing, ErrSpec, ErrGone, ErrPermission, ErrNoNamespace if this process does not see the namespace
// to which the interface is lent, and the system's.
func Import(r *capsule.Reader) (t *TAP, err error) {
	var h handedTAP
	fds, err := r.Take("tap", &h)
	if err != nil {
		return nil, err
	}
	var queues []*os.File
	for _, fd := range fds {
		queues = append(queues, os.NewFile(uintptr(fd), tunPath))
	}
	if t, err = h.open(queues); err != nil {
		for _, f := range queues {
			_ = f.Close()
		}
		return nil, fmt.Errorf("take over %s: %w", h.Name, err)
	}
	return t, nil
}

// Offloads returns those that were set last, by this process or by the one that it continues.
func (t *TAP) Offloads() Offloads {
	t.keep.Lock()
	defer t.keep.Unlock()
	return t.offloads
}

func (h *handedTAP) open(queues []*os.File) (_ *TAP, err error) {
	spec := Spec{
		Name: h.Name, Netns: h.Netns, MAC: [6]byte{2}, MTU: MinMTU,
		TxQueueLen: h.QueueLen, LargeTxQueueLen: h.LargeQueueLen, Queues: len(queues),
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if len(queues) < 1 || slices.Contains(queues, nil) || h.Offloads&^AllOffloads != 0 {
		return nil, fmt.Errorf("%w: %d queues, offloads %#x", ErrSpec, len(queues), uint32(h.Offloads))
	}
	t := newUnattached(spec)
	t.given, t.wantCarrier, t.offloads = true, h.Carrier, h.Offloads
	for _, f := range queues {
		if err := t.tun.add(f); err != nil {
			return nil, err
		}
	}
	if t.mac, err = t.tun.check(); err != nil {
		return nil, err
	}
	if t.dev.withdrawn() { // perhaps only for this process; an inspection would delete the interface
		return nil, fmt.Errorf("%s: %w, or it leads to another one than the interface's", h.Netns, ErrNoNamespace)
	}
	if err := t.dev.findHome(); err != nil {
		return nil, fmt.Errorf("find the home of the interface: %w", err)
	}
	return t, nil
}

// findHome opens a netlink socket at home: in this process's network namespace, or in that in which the
// queues were opened.
func (d *netdev) findHome() (err error) {
	if d.netns == "" {
		if d.home, err = os.Stat("/proc/thread-self/ns/net"); err == nil {
			d.nl, err = openRtnl()
		}
		return err
	}
	ns, err := d.tun.lender()
	if err != nil {
		return err
	}
	defer ns.Close()
	if d.home, err = ns.Stat(); err != nil {
		return err
	}
	if entered := kernel.InNamespace(ns, func() { d.nl, err = openRtnl() }); entered != nil {
		return entered
	}
	return err
}

// check checks that all queues are those of one multi-queue TAP, and reads its MAC.
func (t *tun) check() (mac [6]byte, err error) {
	var first string
	for i, q := range t.queues {
		var ctlErr error
		err := q.conn.Control(func(fd uintptr) {
			req, err := unix.NewIfreq(t.name)
			if err == nil {
				err = os.NewSyscallError("TUNGETIFF", unix.IoctlIfreq(int(fd), unix.TUNGETIFF, req))
			}
			switch flags := uint16(unix.IFF_TAP | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE); {
			case err != nil:
				ctlErr = classify(err)
			case req.Uint16()&flags != flags:
				ctlErr = fmt.Errorf("queue %d has the flags %#x", i, req.Uint16())
			case i > 0 && req.Name() != first:
				ctlErr = fmt.Errorf("queue %d belongs to %s, the first one to %s", i, req.Name(), first)
			}
			if i == 0 && ctlErr == nil {
				first = req.Name()
				mac, ctlErr = queueMAC(int(fd))
			}
		})
		if err := errors.Join(err, ctlErr); err != nil {
			return mac, err
		}
	}
	return mac, nil
}
