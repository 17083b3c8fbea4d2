package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TAP is an attached TAP; it implements [Device].
type TAP struct {
	name  string
	mac   [6]byte     // the MAC when it was opened
	note  *os.File    // contains our PID; may be nil
	nl    *rtnl       // in the network namespace in which it was opened
	home  os.FileInfo // that namespace
	file  *os.File
	conn  syscall.RawConn // of file
	count tally
	rd    reader
	wr    writer

	// The lengths of the queue of frames from the host, with small and with large frames.
	queueLen, largeQueueLen int

	keep        sync.Mutex // serializes SetCarrier, SetOffloads, SetPrograms, Inspect and Close
	wantCarrier bool       // the argument of the last SetCarrier
	offloads    Offloads   // the result of the last SetOffloads
	programs    Programs   // the argument of the last SetPrograms

	ctx      context.Context // ends with Close
	end      context.CancelFunc
	watchMu  sync.Mutex // a watcher starts before Close, or not at all
	watchers sync.WaitGroup
	closing  sync.Once
	closeErr error
}

var _ Device = (*TAP)(nil)

// newTAP attaches a queue to the interface of a specification.
func newTAP(spec Spec, nl *rtnl) (*TAP, error) {
	file, err := attachQueue(spec.Name)
	if err != nil {
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	t := &TAP{name: spec.Name, nl: nl, file: file, conn: conn, programs: NoPrograms}
	t.queueLen, t.largeQueueLen = spec.queueLens()
	if t.home, err = t.place(); err != nil {
		return nil, errors.Join(fmt.Errorf("find the network namespace of %s: %w", t.name, classify(err)), file.Close())
	}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.rd.init(conn, &t.count)
	t.wr.init(conn, &t.count)
	return t, nil
}

// Name returns the name that the interface was opened with.
func (t *TAP) Name() string { return t.name }

// ReadBatch implements [Device]. Wake sets an expired read deadline, which the read that it
// ended clears.
func (t *TAP) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	n, err := t.rd.batch(bufs, sizes)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, t.ioError(t.file.SetReadDeadline(time.Time{}))
	}
	// The netpoller does not report that the interface was deleted, only that it cannot
	// wait. The queue returns EBADFD.
	_, gone := t.currentName()
	return n, t.ioError(errors.Join(gone, err))
}

// WriteVectors implements [Device].
func (t *TAP) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	n, err := t.wr.batch(frames, accepted)
	return n, t.ioError(err)
}

// Wake implements [Device].
func (t *TAP) Wake() {
	// This fails only if the file is closed, which wakes the reader too.
	_ = t.file.SetReadDeadline(time.Unix(1, 0))
}

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

// control calls f with the descriptor, which stays open during the call.
func (t *TAP) control(f func(fd int) error) error {
	var ctlErr error
	err := t.conn.Control(func(fd uintptr) { ctlErr = f(int(fd)) })
	return errors.Join(err, ctlErr)
}

// Close implements [Device]. It first drops the carrier, so that the host stops sending
// before the queue is detached. It turns the offloads off and removes the programs, which
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

// release resets the properties of the device that belong to this process, and closes the
// file. Afterwards an inspection restores nothing, because it has no queue.
func (t *TAP) release() (resetErr, fileErr error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	resetErr = t.control(func(fd int) error {
		_, err := setOffloads(fd, 0)
		return errors.Join(setCarrier(fd, false), err, NoPrograms.set(fd))
	})
	if errors.Is(resetErr, unix.EBADFD) {
		resetErr = nil // the interface was deleted
	}
	removeNote(t.note)
	return resetErr, t.file.Close()
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
