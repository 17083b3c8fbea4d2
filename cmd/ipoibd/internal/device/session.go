package device

import (
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Session is one opened instance of a device, held open by its users.
type Session struct {
	hca.Device
	Instance uint64 // counts from 1; the generation of the device's ladder

	guard    *guard.Device
	watchers watchers

	mu      sync.Mutex // guards what follows
	users   int
	retired bool
	idle    chan struct{} // closed when retired and without users
}

func newSession(dev *guard.Device, instance uint64) *Session {
	return &Session{Device: dev, Instance: instance, guard: dev, idle: make(chan struct{})}
}

// Watch has f called with each event of a QP or CQ until stop was called; when
// stop has returned, f is not called any more. f must not block, nor call Watch
// or stop itself. Any goroutine may call Watch and stop.
func (s *Session) Watch(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func()) {
	return s.watchers.add(id, f)
}

// Fail moves the device to the error state at once (see [guard.Device.Fail]):
// nobody waits for hardware any more. Only the first call counts.
func (s *Session) Fail(cause error) { s.guard.Fail(cause) }

// Acquire makes the caller a user, unless the session is over.
func (s *Session) Acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.users++
	return true
}

// Release undoes Acquire.
func (s *Session) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.checkIdle()
}

// drain ends the session and waits until all users let go.
func (s *Session) drain() {
	s.mu.Lock()
	s.retired = true
	s.checkIdle()
	s.mu.Unlock()
	<-s.idle
}

func (s *Session) checkIdle() {
	if s.retired && s.users == 0 {
		close(s.idle)
	}
}
