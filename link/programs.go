package link

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// Programs are descriptors of eBPF programs that run for each frame from the host; -1: none.
type Programs struct {
	Filter   int // truncates the frame to its result; 0 drops it (TUNSETFILTEREBPF)
	Steering int // selects the queue (TUNSETSTEERINGEBPF)
}

// NoPrograms is the initial state of a TAP: no programs.
var NoPrograms = Programs{Filter: -1, Steering: -1}

// SetPrograms replaces the programs of the device. The descriptors must stay open until the
// programs are replaced or the TAP is closed, because each inspection sets them again. If
// SetPrograms fails, the device has no programs. Errors: ErrClosed, ErrGone.
func (t *TAP) SetPrograms(p Programs) error {
	t.keep.Lock()
	defer t.keep.Unlock()
	err := t.tun.control(p.set)
	if err != nil {
		p = NoPrograms
		_ = t.tun.control(p.set)
	}
	t.programs = p
	if err != nil {
		return fmt.Errorf("attach eBPF programs to %s: %w", t.tun.name, t.tun.ioError(err))
	}
	return nil
}

// ObserveWaits makes ReadBatch of a queue call onWait when it finds no frame and is about to wait, and onWake once it has
// read the frame for which it waited; nil: not. No goroutine may be in ReadBatch of the queue.
func (t *TAP) ObserveWaits(queue int, onWait, onWake func()) {
	rd := &t.tun.queues[queue].rd
	rd.onWait, rd.onWake, rd.waiting = onWait, onWake, false
}

// ErrAway means that the interface is in another network namespace.
var ErrAway = errors.New("the interface is in another network namespace")

// AttachEgress runs an eBPF program (BPF_PROG_TYPE_SCHED_CLS) for each frame that the host sends, before the queueing
// discipline. -1 removes one, including that of a killed process. The interface must be in the network namespace of this
// process; the program does not follow it elsewhere, and inspections do not restore it. Close removes it. It returns the
// index of the interface. It waits for the kernel's rtnl lock. Errors: ErrAway, ErrGone, the system's.
func (t *TAP) AttachEgress(fd int) (index int, err error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	err = t.dev.visit(func(r *rtnl, l netlink.Link) error {
		switch index = l.Attrs().Index; {
		case r != t.dev.nl:
			return ErrAway
		case fd < 0:
			t.egress = 0
			return kernel.DetachProgram(index, kernel.Egress)
		default:
			t.egress = index // an attempt that fails may leave a qdisc
			return kernel.AttachProgram(index, kernel.Egress, fd)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("change the eBPF program at the egress of %s: %w", t.tun.name, err)
	}
	return index, nil
}

// set attaches the programs to a device. The kernel keeps them until they are replaced, even
// when the last queue is closed.
func (p Programs) set(fd int) error {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETFILTEREBPF, p.Filter); err != nil {
		return os.NewSyscallError("TUNSETFILTEREBPF", err)
	}
	return os.NewSyscallError("TUNSETSTEERINGEBPF", unix.IoctlSetPointerInt(fd, unix.TUNSETSTEERINGEBPF, p.Steering))
}
