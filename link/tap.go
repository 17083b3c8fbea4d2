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
	index int
	own   lock
	nl    *rtnl
	file  *os.File
	conn  syscall.RawConn // of file
	count tally
	rd    reader
	wr    writer

	ctx      context.Context // ends with Close
	end      context.CancelFunc
	watchMu  sync.Mutex // a watcher begins before the end, or not at all
	watchers sync.WaitGroup
	closing  sync.Once
	closeErr error
}

var _ Device = (*TAP)(nil)

func newTAP(name string, index int, own lock, nl *rtnl) (*TAP, error) {
	file, err := attachQueue(name)
	if err != nil {
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	t := &TAP{name: name, index: index, own: own, nl: nl, file: file, conn: conn}
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
	return n, t.ioError(errors.Join(t.gone(), err))
}

// gone returns the error of a queue whose interface was deleted. The netpoller
// knows only that such a queue cannot be waited for.
func (t *TAP) gone() error {
	return t.control(func(fd int) error {
		req, err := unix.NewIfreq(t.name)
		if err != nil {
			return err
		}
		return os.NewSyscallError("TUNGETIFF", unix.IoctlIfreq(fd, unix.TUNGETIFF, req))
	})
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
// sending before the queue is gone; the lock goes last, so that the next owner
// finds no queue.
func (t *TAP) Close() error {
	t.closing.Do(func() {
		t.watchMu.Lock()
		t.end()
		t.watchMu.Unlock()
		carrierErr := t.carrier(false)
		if errors.Is(carrierErr, unix.EBADFD) {
			carrierErr = nil // deleted: there is nothing to drop
		}
		fileErr := t.file.Close()
		t.watchers.Wait()
		t.nl.close()
		t.closeErr = errors.Join(carrierErr, fileErr, t.own.release())
	})
	return t.closeErr
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

// reader reads frames. Its function is made once, so that a batch allocates
// nothing; what the function works on lies beside it.
type reader struct {
	conn  syscall.RawConn
	count *tally
	drain func(fd uintptr) bool

	bufs  [][]byte
	sizes []int
	n     int
	err   error
	// vec is the buffer of one read, with a spare byte behind it that tells a
	// frame which was cut off from one that just fits.
	vec   [2][]byte
	spare [1]byte
}

func (r *reader) init(conn syscall.RawConn, count *tally) {
	r.conn, r.count, r.drain = conn, count, r.readAll
	r.vec[1] = r.spare[:]
}

func (r *reader) batch(bufs [][]byte, sizes []int) (int, error) {
	r.bufs, r.sizes, r.n, r.err = bufs, sizes[:len(bufs)], 0, nil
	err := r.conn.Read(r.drain)
	r.bufs, r.sizes, r.vec[0] = nil, nil, nil
	r.count.read.Add(uint64(r.n))
	if err == nil {
		err = r.err
	}
	return r.n, err
}

// readAll fills the batch until it is full or no frame waits; false asks the
// netpoller to wait. An error after a frame is met again by the next batch.
func (r *reader) readAll(fd uintptr) bool {
	for r.n < len(r.bufs) {
		err := r.readOne(int(fd))
		switch {
		case err == nil || errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return r.n > 0
		case r.n == 0:
			r.err = err
		}
		break
	}
	return true
}

func (r *reader) readOne(fd int) error {
	buf := r.bufs[r.n]
	r.vec[0] = buf
	size, err := unix.Readv(fd, r.vec[:])
	switch {
	case err != nil:
		return err
	case size > len(buf):
		r.count.readTooLong.Add(1)
	default:
		r.sizes[r.n] = size
		r.n++
	}
	return nil
}

// writer writes frames; it is made as reader is, and takes turns.
type writer struct {
	mu    sync.Mutex
	conn  syscall.RawConn
	count *tally
	flush func(fd uintptr) bool

	frames [][]byte
	n      int
	err    error
}

func (w *writer) init(conn syscall.RawConn, count *tally) {
	w.conn, w.count, w.flush = conn, count, w.writeAll
}

func (w *writer) batch(frames [][]byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames, w.n, w.err = frames, 0, nil
	err := w.conn.Write(w.flush)
	w.frames = nil
	w.count.written.Add(uint64(w.n))
	if err == nil {
		err = w.err
	}
	return w.n, err
}

// writeAll never asks the netpoller to wait: a frame that does not fit now is
// dropped, as on any wire.
func (w *writer) writeAll(fd uintptr) bool {
	for _, frame := range w.frames {
		_, err := unix.Write(int(fd), frame)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Write(int(fd), frame)
		}
		switch {
		case err == nil:
			w.n++
		case errors.Is(err, unix.EBADFD):
			w.err = err
			return true
		default:
			w.count.refused(err)
		}
	}
	return true
}
