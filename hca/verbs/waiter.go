package verbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// waiter waits for a descriptor of libibverbs with Go's network poller, so that
// waiting costs no thread.
type waiter struct {
	file *os.File // a duplicate: libibverbs closes its own
	raw  syscall.RawConn

	mu     sync.Mutex // guards what follows, and the file's deadline
	woken  bool
	closed bool
}

// newWaiter makes fd non-blocking; the flag is of the open file, so libibverbs's
// own reads do not block either.
func newWaiter(fd int, name string) (*waiter, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	w := &waiter{file: os.NewFile(uintptr(dup), name)}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // refused where the poller cannot wait
	}
	if err != nil {
		_ = w.file.Close()
		return nil, err
	}
	return w, nil
}

// wait calls take, now and whenever there is something to read, until it
// returns true, until the time until (zero: no limit) or until wake. One
// goroutine waits. Errors: ErrClosed, and ErrIO where nothing will ever be there
// to read: of a device that was removed the kernel says EPOLLERR alone
// (ib_uverbs_event_poll in drivers/infiniband/core/uverbs_main.c), upon which
// Go's poller waits no more and take is not asked.
func (w *waiter) wait(until time.Time, take func(fd uintptr) bool) error {
	if w.begin(until) {
		return nil
	}
	err := w.raw.Read(take)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = false
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded): // the latter is the time, or wake
		return nil
	case w.closed:
		return hca.ErrClosed
	}
	return fmt.Errorf("%w: %w", hca.ErrIO, err)
}

// begin sets the deadline, or reports that wake came before.
func (w *waiter) begin(until time.Time) (woken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if woken, w.woken = w.woken, false; !woken {
		_ = w.file.SetReadDeadline(until) // fails when closed, as the read will
	}
	return woken
}

// past is a deadline that ends a wait at once.
var past = time.Unix(1, 0)

// wake ends the wait under way, or else the next one.
func (w *waiter) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = true
	_ = w.file.SetReadDeadline(past)
}

// close ends waiting for good, and returns once take is not running any more.
func (w *waiter) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.file.Close()
}
