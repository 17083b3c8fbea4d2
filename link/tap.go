package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// TAP is an attached TAP; it implements [Device].
type TAP struct {
	name  string
	netns string      // Spec.Netns
	mac   [6]byte     // the MAC when it was opened
	note  *os.File    // contains our PID; may be nil
	nl    *rtnl       // in the network namespace in which it was opened
	home  os.FileInfo // that namespace
	count tally

	queues []*Queue // at least one; constant once the TAP is open

	// The lengths of the queue of frames from the host, with small and with large frames.
	queueLen, largeQueueLen int

	keep        sync.Mutex // serializes SetCarrier, SetOffloads, SetPrograms, Inspect and Close
	wantCarrier bool       // the argument of the last SetCarrier
	offloads    Offloads   // the result of the last SetOffloads
	programs    Programs   // the argument of the last SetPrograms
	given       bool       // another process takes over the interface: see GiveUp

	ctx      context.Context // ends with Close
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
	t.nl = nl
	q, err := t.attach()
	if err != nil {
		return nil, err
	}
	t.queues = []*Queue{q}
	if t.home, err = t.place(); err != nil {
		err = fmt.Errorf("find the network namespace of %s: %w", t.name, classify(err))
		return nil, errors.Join(err, q.file.Close())
	}
	return t, nil
}

// newUnattached returns a TAP without queues.
func newUnattached(spec Spec) *TAP {
	t := &TAP{name: spec.Name, netns: spec.Netns, programs: NoPrograms}
	t.queueLen, t.largeQueueLen = spec.queueLens()
	t.ctx, t.end = context.WithCancel(context.Background())
	return t
}

// Name returns the name that the interface was opened with.
func (t *TAP) Name() string { return t.name }

// ReadBatch implements [Device], for the first queue.
func (t *TAP) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	return t.queues[0].ReadBatch(bufs, sizes)
}

// WriteVectors implements [Device], for the first queue.
func (t *TAP) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	return t.queues[0].WriteVectors(frames, accepted)
}

// Wake implements [Device], for the first queue.
func (t *TAP) Wake() { t.queues[0].Wake() }

// SetCarrier implements [Device].
func (t *TAP) SetCarrier(on bool) error {
	t.keep.Lock()
	defer t.keep.Unlock()
	t.wantCarrier = on
	if err := t.carrier(on); err != nil {
		return fmt.Errorf("set the carrier of %s: %w", t.name, t.ioError(err))
	}
	return nil
}

func (t *TAP) carrier(on bool) error {
	return t.control(func(fd int) error { return setCarrier(fd, on) })
}

// control calls f with the descriptor of the first queue, which stays open during the call.
func (t *TAP) control(f func(fd int) error) error {
	var ctlErr error
	err := t.queues[0].conn.Control(func(fd uintptr) { ctlErr = f(int(fd)) })
	return errors.Join(err, ctlErr)
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
		t.nl.close()
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
		t.note.Close()
		return nil, t.closeQueues()
	}
	resetErr = t.control(func(fd int) error {
		_, err := setOffloads(fd, 0)
		return errors.Join(setCarrier(fd, false), err, NoPrograms.set(fd))
	})
	if errors.Is(resetErr, unix.EBADFD) {
		resetErr = nil // the interface was deleted
	}
	removeNote(t.note)
	return resetErr, t.closeQueues()
}

// Remove closes the device and removes the interface, whatever its current name and
// namespace. It is no error if the interface is already gone. May block.
func (t *TAP) Remove() error {
	err := t.control(func(fd int) error {
		return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0))
	})
	if err = t.ioError(err); err != nil && !errors.Is(err, ErrGone) {
		return errors.Join(fmt.Errorf("remove %s: %w", t.name, err), t.Close())
	}
	return t.Close()
}

// ioError replaces the error of a closed file by ErrClosed, and classifies others.
func (t *TAP) ioError(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return ErrClosed
	}
	return classify(err)
}
