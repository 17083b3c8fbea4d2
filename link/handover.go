package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// Handed describes a TAP that another process continues. Its descriptors are the queues, in order,
// and then the note, if there is one.
type Handed struct {
	Name                    string // with which it was opened
	Netns                   string // Spec.Netns
	Queues                  int
	QueueLen, LargeQueueLen int
	Carrier                 bool
	Offloads                Offloads
	Note                    string // path of the file that names the holder; empty: there is none
}

// HandOver returns what another process needs to continue the interface, with duplicates of the
// descriptors, which the caller closes. The state of ib0 does not change. Meanwhile no goroutine may
// call the other methods.
func (t *TAP) HandOver() (h Handed, fds []int, err error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	h = Handed{
		Name: t.name, Netns: t.netns, Queues: len(t.queues), QueueLen: t.queueLen, LargeQueueLen: t.largeQueueLen,
		Carrier: t.wantCarrier, Offloads: t.offloads,
	}
	files := make([]*os.File, 0, len(t.queues)+1)
	for _, q := range t.queues {
		files = append(files, q.file)
	}
	if t.note != nil {
		h.Note = t.note.Name()
		files = append(files, t.note)
	}
	for _, f := range files {
		fd, err := kernel.Duplicate(f)
		if err != nil {
			kernel.CloseAll(fds)
			return Handed{}, nil, fmt.Errorf("hand over %s: %w", t.name, err)
		}
		fds = append(fds, fd)
	}
	return h, fds, nil
}

// GiveUp leaves ib0 to the process that continues it: from then on, Close only closes the queues.
func (t *TAP) GiveUp() {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.given = true
}

// Own undoes GiveUp. It names this process as the holder.
func (t *TAP) Own() {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.given = false
	if t.note != nil && t.note.Truncate(0) == nil {
		_, _ = t.note.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
}

// Inherit continues the interface of another process, whose descriptors it owns from then on, also
// after an error. It changes nothing: until Own, Close only closes the queues. Errors: ErrSpec,
// ErrGone, ErrPermission, and the system's.
func Inherit(h Handed, fds []int) (t *TAP, err error) {
	want := h.Queues
	if h.Note != "" {
		want++
	}
	var files []*os.File
	for i, fd := range fds {
		name := tunPath
		if i == h.Queues {
			name = h.Note // by which removeNote removes it
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	if t, err = inherit(h, files, want); err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("take over %s: %w", h.Name, err)
	}
	return t, nil
}

func inherit(h Handed, files []*os.File, want int) (_ *TAP, err error) {
	spec := Spec{Name: h.Name, Netns: h.Netns, MAC: [6]byte{2}, MTU: MinMTU, TxQueueLen: h.QueueLen, LargeTxQueueLen: h.LargeQueueLen, Queues: h.Queues}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if h.Queues < 1 || len(files) != want || slices.Contains(files, nil) || h.Offloads&^AllOffloads != 0 ||
		h.Note != "" && filepath.Dir(h.Note) != notesDir {
		return nil, fmt.Errorf("%w: %d queues, %d descriptors, offloads %#x, note %q", ErrSpec, h.Queues, len(files), uint32(h.Offloads), h.Note)
	}
	t := newUnattached(spec)
	t.given, t.wantCarrier, t.offloads = true, h.Carrier, h.Offloads
	for _, f := range files[:h.Queues] {
		q, err := t.newQueue(f)
		if err != nil {
			return nil, err
		}
		t.queues = append(t.queues, q)
	}
	if err := t.checkQueues(); err != nil {
		return nil, err
	}
	if h.Note != "" {
		t.note = files[h.Queues]
	}
	if err := t.findHome(); err != nil {
		return nil, fmt.Errorf("find the home of the interface: %w", err)
	}
	return t, nil
}

// findHome opens a netlink socket at home: in this process's network namespace, or in that in which the
// queues were opened.
func (t *TAP) findHome() (err error) {
	if t.netns == "" {
		if t.home, err = os.Stat("/proc/thread-self/ns/net"); err == nil {
			t.nl, err = openRtnl()
		}
		return err
	}
	ns, err := t.lender()
	if err != nil {
		return err
	}
	defer ns.Close()
	if t.home, err = ns.Stat(); err != nil {
		return err
	}
	if entered := kernel.InNamespace(ns, func() { t.nl, err = openRtnl() }); entered != nil {
		return entered
	}
	return err
}

// checkQueues checks that all queues are those of one multi-queue TAP, and reads its MAC.
func (t *TAP) checkQueues() error {
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
				t.mac, ctlErr = queueMAC(int(fd))
			}
		})
		if err := errors.Join(err, ctlErr); err != nil {
			return err
		}
	}
	return nil
}
