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
	mac   [6]byte     // when it was opened
	note  *os.File    // contains our PID; may be nil
	nl    *rtnl       // of the network namespace that it was opened in
	home  os.FileInfo // that namespace
	file  *os.File
	conn  syscall.RawConn // of file
	count tally
	rd    reader
	wr    writer

	keep        sync.Mutex // keeps SetCarrier and Inspect apart
	wantCarrier bool       // of the last SetCarrier

	ctx      context.Context // ends with Close
	end      context.CancelFunc
	watchMu  sync.Mutex // a watcher begins before the end, or not at all
	watchers sync.WaitGroup
	closing  sync.Once
	closeErr error
}

var _ Device = (*TAP)(nil)

// newTAP attaches a queue to the interface with a name.
func newTAP(name string, nl *rtnl) (*TAP, error) {
	file, err := attachQueue(name)
	if err != nil {
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	t := &TAP{name: name, nl: nl, file: file, conn: conn}
	if t.home, err = t.place(); err != nil {
		return nil, errors.Join(fmt.Errorf("find the network namespace of %s: %w", name, classify(err)), file.Close())
	}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.rd.init(conn, &t.count)
	t.wr.init(conn, &t.count)
	return t, nil
}

// Name returns the name that the interface was opened with.
func (t *TAP) Name() string { return t.name }

// ReadBatch implements [Device]. Wake is an expired read deadline, which the
// read that it ended takes away.
func (t *TAP) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	n, err := t.rd.batch(bufs, sizes)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, t.ioError(t.file.SetReadDeadline(time.Time{}))
	}
	// Of a deleted interface the netpoller knows only that it cannot wait.
	_, gone := t.currentName()
	return n, t.ioError(errors.Join(gone, err))
}

// WriteBatch implements [Device].
func (t *TAP) WriteBatch(frames [][]byte) (int, error) {
	n, err := t.wr.batch(frames)
	return n, t.ioError(err)
}

// Wake implements [Device].
func (t *TAP) Wake() {
	// It fails only once the file is closed, which wakes the reader too.
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

// control calls f with the descriptor, which stays open meanwhile.
func (t *TAP) control(f func(fd int) error) error {
	var ctlErr error
	err := t.conn.Control(func(fd uintptr) { ctlErr = f(int(fd)) })
	return errors.Join(err, ctlErr)
}

// Close implements [Device]. The carrier goes first, so that the host stops
// sending before the queue is gone.
func (t *TAP) Close() error {
	t.closing.Do(func() {
		t.watchMu.Lock()
		t.end()
		t.watchMu.Unlock()
		carrierErr := t.carrier(false)
		if errors.Is(carrierErr, unix.EBADFD) {
			carrierErr = nil // deleted: there is nothing to drop
		}
		removeNote(t.note)
		fileErr := t.file.Close()
		t.watchers.Wait()
		t.nl.close()
		t.closeErr = errors.Join(carrierErr, fileErr)
	})
	return t.closeErr
}

// Remove is Close, and takes the interface away, whatever its name is now and
// wherever it was moved. One that is gone already is no error. May block.
func (t *TAP) Remove() error {
	err := t.control(func(fd int) error {
		return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0))
	})
	if err = t.ioError(err); err != nil && !errors.Is(err, ErrGone) {
		return errors.Join(fmt.Errorf("remove %s: %w", t.name, err), t.Close())
	}
	return t.Close()
}

// ioError puts the contract's sentinel in the place of the file's.
func (t *TAP) ioError(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return ErrClosed
	}
	return classify(err)
}
