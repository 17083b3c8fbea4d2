package link

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reader reads frames. Its function value is created once, so that a batch does not
// allocate; the arguments of the function are fields of the reader.
type reader struct {
	conn  syscall.RawConn
	count *tally
	drain func(fd uintptr) bool

	bufs           [][]byte
	sizes          []int
	n              int
	err            error
	onWait, onWake func() // see TAP.ObserveWaits; nil: none
	waiting        bool   // onWait was called, and onWake not yet
	waited         bool   // this batch had to wait for a frame

	// vec is the buffer of one read and a spare byte. If the spare byte is used, the
	// frame did not fit into the buffer.
	vec   [2]unix.Iovec
	spare [1]byte
}

func (r *reader) init(conn syscall.RawConn, count *tally) {
	r.conn, r.count, r.drain = conn, count, r.readAll
	setVec(&r.vec[1], r.spare[:])
}

func (r *reader) batch(bufs [][]byte, sizes []int) (int, error) {
	r.bufs, r.sizes, r.n, r.err, r.waited = bufs, sizes[:len(bufs)], 0, nil, false
	err := r.conn.Read(r.drain)
	r.bufs, r.sizes, r.vec[0] = nil, nil, unix.Iovec{}
	r.count.read.Add(uint64(r.n))
	if err == nil {
		err = r.err
	}
	return r.n, err
}

// readAll reads until the batch is full or no frame is queued. It returns false to make the
// netpoller wait. A frame that it had to wait for is a batch by itself: looking for a second one
// would delay the first. It ignores an error after a frame, because the next batch gets it again.
func (r *reader) readAll(fd uintptr) bool {
	for r.n < len(r.bufs) {
		switch errno := r.readOne(fd); errno {
		case 0:
			if r.waiting {
				r.waiting = false
				r.onWake()
			}
			if r.waited {
				return true
			}
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			if r.n > 0 {
				return true
			}
			if r.waited = true; r.onWait != nil {
				r.onWait()
			}
			r.waiting = r.onWake != nil
			return false
		default:
			if r.n == 0 {
				r.err = errno
			}
			return true
		}
	}
	return true
}

func (r *reader) readOne(fd uintptr) unix.Errno {
	buf := r.bufs[r.n]
	setVec(&r.vec[0], buf)
	size, errno := rawReadv(fd, &r.vec)
	switch {
	case errno != 0:
	case size > len(buf):
		r.count.readTooLong.Add(1)
	default:
		r.sizes[r.n] = size
		r.n++
	}
	return errno
}

func setVec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// MaxSlices is the largest number of slices of a frame in WriteVectors. The kernel allows 1024
// (UIO_MAXIOV); a frame of 64 segments has 64.
const MaxSlices = 128

// writer writes frames. Like reader it allocates nothing per batch; a mutex serializes its
// callers.
type writer struct {
	mu    sync.Mutex
	conn  syscall.RawConn
	count *tally
	flush func(fd uintptr) bool

	frames   [][][]byte
	accepted []bool // by frame
	n        int
	err      error
	vec      [MaxSlices]unix.Iovec
}

func (w *writer) init(conn syscall.RawConn, count *tally) {
	w.conn, w.count, w.flush = conn, count, w.writeAll
}

func (w *writer) batch(frames [][][]byte, accepted []bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames, w.accepted, w.n, w.err = frames, accepted[:len(frames)], 0, nil
	clear(w.accepted)
	err := w.conn.Write(w.flush)
	w.frames, w.accepted = nil, nil
	w.count.written.Add(uint64(w.n))
	if err == nil {
		err = w.err
	}
	return w.n, err
}

// writeAll never makes the netpoller wait. A frame that the kernel cannot accept now is
// dropped, as on any network.
func (w *writer) writeAll(fd uintptr) bool {
	for k, slices := range w.frames {
		vec, size := w.vec[:min(len(slices), MaxSlices)], 0
		for i := range vec {
			setVec(&vec[i], slices[i])
			size += len(slices[i])
		}
		errno := unix.EINVAL // for an empty frame, which the kernel would accept (do_iter_readv_writev)
		if size > 0 && len(slices) <= MaxSlices {
			errno = rawWritev(fd, vec)
		}
		for errno == unix.EINTR {
			errno = rawWritev(fd, vec)
		}
		w.accepted[k] = errno == 0
		if !w.wrote(errno) {
			break
		}
	}
	clear(w.vec[:]) // releases the references to the caller's memory
	return true
}

// wrote counts a frame that was written or refused. It returns false if the interface is gone.
func (w *writer) wrote(errno unix.Errno) bool {
	switch errno {
	case 0:
		w.n++
	case unix.EBADFD:
		w.err = errno
		return false
	default:
		w.count.refused(errno)
	}
	return true
}
