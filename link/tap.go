package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// TAP is an attached TAP; it implements [Device].
type TAP struct {
	tun tun
	dev netdev

	mac  [6]byte // the MAC when it was opened
	lens queueLens

	keep        sync.Mutex // serializes SetCarrier, SetOffloads, SetPrograms, AttachEgress, Inspect and Close
	wantCarrier bool       // the argument of the last SetCarrier
	offloads    Offloads   // the result of the last SetOffloads
	programs    Programs   // the argument of the last SetPrograms
	egress      int        // index at which AttachEgress has attached a program; 0: none
	given       bool       // another process takes over the interface: see GiveUp

	end      context.CancelFunc
	watchMu  sync.Mutex     // a watcher or reading starts before Close, or not at all
	watchers sync.WaitGroup // and readings of the kernel's counters
	reading  reading
	closing  sync.Once
	closeErr error
}

var _ Device = (*TAP)(nil)

// newTAP attaches a queue to the interface of a specification.
func newTAP(spec Spec, nl *rtnl) (*TAP, error) {
	t := newUnattached(spec)
	t.dev.nl = nl
	if err := t.tun.attach(); err != nil {
		return nil, err
	}
	var err error
	if t.dev.home, err = t.tun.place(); err != nil {
		err = fmt.Errorf("find the network namespace of %s: %w", spec.Name, classify(err))
		return nil, errors.Join(err, t.tun.close())
	}
	return t, nil
}

// newUnattached returns a TAP without queues.
func newUnattached(spec Spec) *TAP {
	t := &TAP{programs: NoPrograms}
	t.tun.name = spec.Name
	t.tun.open, t.end = context.WithCancel(context.Background())
	t.dev.tun, t.dev.netns = &t.tun, spec.Netns
	t.lens = spec.queueLens()
	return t
}

// Name returns the name that the interface was opened with.
func (t *TAP) Name() string { return t.tun.name }

// Queues implements [Device].
func (t *TAP) Queues() (all []Queue) {
	for _, q := range t.tun.queues {
		all = append(all, q)
	}
	return all
}

// ReadBatch implements [Device], for the first queue.
func (t *TAP) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	return t.tun.queues[0].ReadBatch(bufs, sizes)
}

// WriteVectors implements [Device], for the first queue.
func (t *TAP) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	return t.tun.queues[0].WriteVectors(frames, accepted)
}

// Wake implements [Device], for the first queue.
func (t *TAP) Wake() { t.tun.queues[0].Wake() }

// SetCarrier implements [Device].
func (t *TAP) SetCarrier(on bool) error {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.wantCarrier = on
	if err := t.tun.carrier(on); err != nil {
		return fmt.Errorf("set the carrier of %s: %w", t.tun.name, t.tun.ioError(err))
	}
	return nil
}

func (t *tun) carrier(on bool) error {
	return t.control(func(fd int) error { return setCarrier(fd, on) })
}

// Close implements [Device]. It first drops the carrier, so that the host stops sending
// before the queues are detached. It turns the offloads off and removes the programs, which
// would otherwise stay.
func (t *TAP) Close() error {
	t.closing.Do(func() {
		t.watchMu.Lock()
		t.end()
		t.watchMu.Unlock()
		resetErr, fileErr := t.release()
		t.watchers.Wait()
		t.dev.nl.close()
		t.closeErr = errors.Join(resetErr, fileErr)
	})
	return t.closeErr
}

// release resets the properties of the device that this process has set, and closes the queues.
// Afterwards an inspection restores nothing, because there is no queue.
func (t *TAP) release() (resetErr, fileErr error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	if t.given {
		return nil, t.tun.close()
	}
	resetErr = t.tun.control(func(fd int) error {
		_, err := setOffloads(fd, 0)
		return errors.Join(setCarrier(fd, false), err, NoPrograms.set(fd))
	})
	if errors.Is(resetErr, unix.EBADFD) {
		resetErr = nil // the interface was deleted
	}
	_ = t.dev.visit(func(r *rtnl, l netlink.Link) error { return unsign(r, l) })
	if t.egress != 0 {
		resetErr = errors.Join(resetErr, kernel.DetachProgram(t.egress, kernel.Egress))
	}
	return resetErr, t.tun.close()
}

// Remove closes the device and removes the interface, whatever its current name and
// namespace. It is no error if the interface is already gone. May block.
func (t *TAP) Remove() error {
	err := t.tun.control(func(fd int) error {
		return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0))
	})
	if err = t.tun.ioError(err); err != nil && !errors.Is(err, ErrGone) {
		return errors.Join(fmt.Errorf("remove %s: %w", t.tun.name, err), t.Close())
	}
	return t.Close()
}
