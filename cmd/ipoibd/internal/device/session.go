package device

import (
	"errors"
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
	unfollow func() // ends the goroutine that reads the events, and waits for it

	abandonOnce sync.Once
	abandoned   chan struct{} // closed when the users are waited for no more

	mu      sync.Mutex // guards what follows
	users   int
	retired bool
	idle    chan struct{} // closed when retired and without users
}

func newSession(dev *guard.Device, instance uint64) *Session {
	return &Session{Device: dev, Instance: instance, guard: dev, idle: make(chan struct{}), abandoned: make(chan struct{})}
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

// retire ends the session: it has no new users. idle is closed once the last one
// let go.
func (s *Session) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.checkIdle()
}

// abandon gives up waiting for the users: their handles become zombies.
func (s *Session) abandon() {
	s.Fail(errAbandoned)
	s.abandonOnce.Do(func() { close(s.abandoned) })
}

var errAbandoned = errors.New("not let go within the grace period")

// inUse returns how many users there are.
func (s *Session) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users
}

func (s *Session) checkIdle() {
	if s.retired && s.users == 0 {
		close(s.idle)
	}
}
