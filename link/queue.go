package link

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// MaxQueues bounds the queues of an interface.
const MaxQueues = 8

// Queue is one queue of a TAP. It has the methods of [Device], which apply to this queue. The
// kernel puts each frame from the host into one of the queues, which [Programs].Steering selects
// or, without it, the kernel itself.
type Queue struct {
	tap  *TAP
	file *os.File
	conn syscall.RawConn
	rd   reader
	wr   writer
}

// attach attaches another queue.
func (t *TAP) attach() (*Queue, error) {
	file, err := attachQueue(t.name)
	if err != nil {
		return nil, err
	}
	return t.newQueue(file)
}

// newQueue returns an attached queue, which owns its file.
func (t *TAP) newQueue(file *os.File) (*Queue, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	q := &Queue{tap: t, file: file, conn: conn}
	q.rd.init(conn, &t.count)
	q.wr.init(conn, &t.count)
	return q, nil
}

// Queues returns all queues. The TAP's own methods use the first one.
func (t *TAP) Queues() []*Queue { return t.queues }

// ReadBatch reads frames; see [Device]. Wake sets an expired read deadline, which the read that
// it ended clears.
func (q *Queue) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	n, err := q.rd.batch(bufs, sizes)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, q.tap.ioError(q.file.SetReadDeadline(time.Time{}))
	}
	// The netpoller does not report that the interface was deleted, only that it cannot
	// wait. The queue returns EBADFD.
	_, gone := q.tap.currentName()
	return n, q.tap.ioError(errors.Join(gone, err))
}

// WriteVectors writes frames; see [Device].
func (q *Queue) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	n, err := q.wr.batch(frames, accepted)
	return n, q.tap.ioError(err)
}

// Wake makes the current ReadBatch return, or else the next one.
func (q *Queue) Wake() {
	// This fails only if the file is closed, which wakes the reader too.
	_ = q.file.SetReadDeadline(time.Unix(1, 0))
}

// closeQueues detaches all queues.
func (t *TAP) closeQueues() error {
	var errs []error
	for _, q := range t.queues {
		errs = append(errs, q.file.Close())
	}
	return errors.Join(errs...)
}
