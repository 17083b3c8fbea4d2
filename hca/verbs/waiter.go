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
	"ipoibd/link/kernel"
)

// waiter waits for a descriptor of libibverbs with Go's network poller, so that
// waiting costs no thread.
type waiter struct {
	file *os.File // a duplicate: libibverbs closes its own
	raw  syscall.RawConn

	mu     sync.Mutex // guards woken, closed and the file's deadline
	woken  bool
	closed bool
}

// newWaiter makes fd non-blocking. The flag belongs to the open file, so the reads of
// libibverbs do not block either.
func newWaiter(fd int, name string) (*waiter, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := kernel.DuplicateFD(fd)
	if err != nil {
		return nil, err
	}
	w := &waiter{file: os.NewFile(uintptr(dup), name)}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails if the poller cannot wait for the file
	}
	if err != nil {
		_ = w.file.Close()
		return nil, err
	}
	return w, nil
}

// wait calls read, now and whenever the descriptor is readable, until read returns true,
// until the time until (zero: no limit), or until wake. Only one goroutine may wait. Errors:
// ErrClosed, and ErrIO if the descriptor can never become readable: for a removed device,
// the kernel reports only EPOLLERR (ib_uverbs_event_poll in
// drivers/infiniband/core/uverbs_main.c), and Go's poller then returns an error without
// calling read.
func (w *waiter) wait(until time.Time, read func(fd uintptr) bool) error {
	if w.setDeadline(until) {
		return nil
	}
	err := w.raw.Read(read)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = false
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded): // the deadline has passed, or wake was called
		return nil
	case w.closed:
		return hca.ErrClosed
	}
	return fmt.Errorf("%w: %w", hca.ErrIO, err)
}

// setDeadline sets the deadline, unless wake was called before, which it reports.
func (w *waiter) setDeadline(until time.Time) (woken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if woken, w.woken = w.woken, false; !woken {
		_ = w.file.SetReadDeadline(until) // if this fails, the file is closed, and the read fails too
	}
	return woken
}

// past is a deadline that ends a wait immediately.
var past = time.Unix(1, 0)

// wake ends the current wait, or else the next one.
func (w *waiter) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = true
	_ = w.file.SetReadDeadline(past)
}

// close ends all waits permanently. When it returns, read is not running.
func (w *waiter) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.file.Close()
}
