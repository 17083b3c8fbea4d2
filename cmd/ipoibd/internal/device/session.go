package device

import (
	"errors"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Session is one opened instance of a device, held open by its users.
type Session struct {
	hca.Device
	Instance uint64 // counts from 1; the generation of the device's ladder

	guard      *guard.Device
	watchers   watchers
	stopEvents func() // ends the goroutine that reads the events, and waits for it

	abandonOnce sync.Once
	abandoned   chan struct{} // closed when the users are waited for no more

	mu      sync.Mutex // guards what follows
	users   []string   // by name, in order of arrival
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

// WireBlocked implements [hca.WireReporter].
func (s *Session) WireBlocked() uint64 { return s.guard.WireBlocked() }

// Strays implements [hca.StrayReporter].
func (s *Session) Strays() (hca.Strays, bool) { return s.guard.Strays() }

// Acquire makes who, a name for people, a user, unless the session is over.
func (s *Session) Acquire(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.users = append(s.users, who)
	return true
}

// Release undoes an Acquire of the same name; of who is no user it is harmless.
func (s *Session) Release(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.users, who); i >= 0 {
		s.users = slices.Delete(s.users, i, i+1)
		s.checkIdle()
	}
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

// usedBy returns the names of the users.
func (s *Session) usedBy() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

func (s *Session) checkIdle() {
	if s.retired && len(s.users) == 0 {
		close(s.idle)
	}
}
