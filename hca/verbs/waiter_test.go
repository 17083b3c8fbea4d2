package verbs

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// limit bounds waits that end within microseconds.
const limit = 10 * time.Second

// pipe returns a waiter for the reading end of a pipe. The test owns that end.
func pipe(t *testing.T) (w *waiter, write func()) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	w, err := newWaiter(fds[0], "pipe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.close()
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Errorf("close the test's end: %v", err)
			}
		}
	})
	text := []byte("x")
	return w, func() {
		if _, err := unix.Write(fds[1], text); err != nil {
			t.Error(err)
		}
	}
}

// readByte returns a function that reads one byte and counts it.
func readByte(n *int) func(uintptr) bool {
	b := make([]byte, 1)
	return func(fd uintptr) bool {
		_, err := unix.Read(int(fd), b)
		if err == nil {
			*n++
		}
		return !errors.Is(err, unix.EAGAIN)
	}
}

func TestWaiterReads(t *testing.T) {
	w, write := pipe(t)
	n := 0
	write()
	if err := w.wait(time.Time{}, readByte(&n)); err != nil || n != 1 {
		t.Errorf("wait for a byte that is there: %v, %d read", err, n)
	}
	done := make(chan error)
	go func() { done <- w.wait(time.Time{}, readByte(&n)) }()
	write()
	if err := <-done; err != nil || n != 2 {
		t.Errorf("wait for a byte that arrives later: %v, %d read", err, n)
	}
}

func TestWaiterUntil(t *testing.T) {
	w, write := pipe(t)
	n := 0
	const pause = 20 * time.Millisecond
	for _, until := range []time.Time{time.Now().Add(pause), time.Now().Add(-time.Hour)} {
		if err := w.wait(until, readByte(&n)); err != nil || n != 0 || time.Now().Before(until) {
			t.Errorf("wait until %v: %v at %v, want nil not before the deadline", until, err, time.Now())
		}
	}
	write() // the earlier deadline no longer applies
	if err := w.wait(time.Now().Add(limit), readByte(&n)); err != nil || n != 1 {
		t.Errorf("wait with a later deadline: %v, %d read, want 1", err, n)
	}
}

// A wake ends one wait, whether it comes before the wait or during it.
func TestWaiterWake(t *testing.T) {
	w, write := pipe(t)
	n := 0
	w.wake()
	w.wake()
	if err := w.wait(time.Time{}, readByte(&n)); err != nil || n != 0 {
		t.Errorf("wait after a wake: %v", err)
	}
	write()
	if err := w.wait(time.Time{}, readByte(&n)); err != nil || n != 1 {
		t.Errorf("the wait after that: %v, %d read", err, n)
	}
	done := make(chan error)
	go func() { done <- w.wait(time.Time{}, readByte(&n)) }()
	w.wake()
	if err := <-done; err != nil || n != 1 {
		t.Errorf("wait during a wake: %v, %d read", err, n)
	}
}

func TestWaiterClose(t *testing.T) {
	w, _ := pipe(t)
	n := 0
	done := make(chan error)
	go func() { done <- w.wait(time.Time{}, readByte(&n)) }()
	if err := w.close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, hca.ErrClosed) {
		t.Errorf("wait during close: %v, want ErrClosed", err)
	}
	w.wake()
	for range 2 { // a wake ends at most one wait
		if err := w.wait(time.Now().Add(limit), readByte(&n)); err != nil && !errors.Is(err, hca.ErrClosed) {
			t.Errorf("wait after close: %v, want nil or ErrClosed", err)
		}
	}
	if err := w.wait(time.Time{}, readByte(&n)); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("wait after close: %v, want ErrClosed", err)
	}
}

// If poll reports only EPOLLERR for a descriptor, as it does for a removed device, the
// waiter returns an error other than ErrClosed. Here the descriptor is the writing end
// of a full pipe without a reader.
func TestWaiterDeviceRemoved(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	for block := make([]byte, 1<<12); ; {
		if _, err := unix.Write(fds[1], block); err != nil {
			break
		}
	}
	w, err := newWaiter(fds[1], "full pipe")
	if err != nil {
		t.Fatal(err)
	}
	never := func(uintptr) bool { return false }
	done := make(chan error)
	go func() { done <- w.wait(time.Now().Add(limit), never) }()
	if err := unix.Close(fds[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, hca.ErrIO) || errors.Is(err, hca.ErrClosed) {
		t.Errorf("wait during the removal: %v, want ErrIO", err)
	}
	if err := w.wait(time.Now().Add(limit), never); !errors.Is(err, hca.ErrIO) {
		t.Errorf("wait after the removal: %v, want ErrIO", err)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	if err := w.wait(time.Time{}, never); !errors.Is(err, hca.ErrClosed) || errors.Is(err, hca.ErrIO) {
		t.Errorf("wait when closed: %v", err)
	}
}

// A file that does not support polling is refused.
func TestWaiterRefusesFiles(t *testing.T) {
	fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if w, err := newWaiter(fd, "file"); err == nil {
		_ = w.close()
		t.Error("a plain file was accepted")
	}
	if _, err := newWaiter(-1, "nothing"); !errors.Is(err, unix.EBADF) {
		t.Errorf("waiter of an invalid descriptor: %v, want EBADF", err)
	}
}

func TestWaiterDoesNotAllocate(t *testing.T) {
	w, write := pipe(t)
	n := 0
	take := readByte(&n)
	if got := testing.AllocsPerRun(100, func() {
		write()
		_ = w.wait(time.Time{}, take)
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
