package link

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxQueues bounds the queues of an interface.
const MaxQueues = 8

// tun is an interface as its queues reach it, wherever it is.
type tun struct {
	name   string          // with which it was opened
	queues []*queue        // at least one; constant once the TAP is open
	open   context.Context // ends with Close
	count  tally
}

// queue is one queue of a TAP. It implements [Queue].
type queue struct {
	tun  *tun
	file *os.File
	conn syscall.RawConn
	rd   reader
	wr   writer
}

// attach attaches another queue.
func (t *tun) attach() error {
	file, err := attachQueue(t.name)
	if err != nil {
		return err
	}
	return t.add(file)
}

// add adds an attached queue, which owns its file.
func (t *tun) add(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	q := &queue{tun: t, file: file, conn: conn}
	q.rd.init(conn, &t.count)
	q.wr.init(conn, &t.count)
	t.queues = append(t.queues, q)
	return nil
}

// close detaches all queues.
func (t *tun) close() error {
	var errs []error
	for _, q := range t.queues {
		errs = append(errs, q.file.Close())
	}
	return errors.Join(errs...)
}

// control calls f with the descriptor of the first queue, which stays open during the call.
func (t *tun) control(f func(fd int) error) error {
	var ctlErr error
	err := t.queues[0].conn.Control(func(fd uintptr) { ctlErr = f(int(fd)) })
	return errors.Join(err, ctlErr)
}

// currentName returns the current name of the queue's interface. EBADFD means that the
// interface was deleted.
func (t *tun) currentName() (name string, err error) {
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

// namespace opens the current network namespace of the interface. The caller closes the file
// soon, because it keeps the namespace alive. The kernel returns EINVAL while it destroys
// the namespace.
func (t *tun) namespace() (ns *os.File, err error) {
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

// place identifies the current network namespace of the interface.
func (t *tun) place() (os.FileInfo, error) {
	ns, err := t.namespace()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return ns.Stat()
}

// lender opens the namespace in which the file of the queue was opened, whatever the path leads to by
// now. The caller closes it.
func (t *tun) lender() (ns *os.File, err error) {
	err = t.control(func(fd int) error {
		nsfd, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
		if err == nil {
			ns = os.NewFile(uintptr(nsfd), "net namespace")
		}
		return os.NewSyscallError("SIOCGSKNS", err)
	})
	return ns, err
}

// ioError replaces the error of a closed file by ErrClosed, and classifies others.
func (t *tun) ioError(err error) error {
	switch {
	case err == nil:
		return nil
	case t.open.Err() != nil:
		return ErrClosed
	}
	return classify(err)
}

// ReadBatch implements [Queue]. Wake sets an expired read deadline, which the read that
// it ended clears.
func (q *queue) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	n, err := q.rd.batch(bufs, sizes)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, q.tun.ioError(q.file.SetReadDeadline(time.Time{}))
	}
	// The netpoller does not report that the interface was deleted, only that it cannot
	// wait. The queue returns EBADFD.
	_, gone := q.tun.currentName()
	return n, q.tun.ioError(errors.Join(gone, err))
}

// WriteVectors implements [Queue].
func (q *queue) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	n, err := q.wr.batch(frames, accepted)
	return n, q.tun.ioError(err)
}

// Wake implements [Queue].
func (q *queue) Wake() {
	// This fails only if the file is closed, which wakes the reader too.
	_ = q.file.SetReadDeadline(time.Unix(1, 0))
}
