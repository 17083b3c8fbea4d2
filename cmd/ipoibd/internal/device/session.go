package device

import (
	"context"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Session is one opened instance of a device, which its users hold open.
type Session struct {
	*guard.Device
	Instance uint64 // counts from 1; the generation of the device's machine

	watching   sync.Mutex // held while a watcher is called, so that stop waits for it
	watchers   map[hca.ObjectID]func(hca.AsyncEvent)
	stopEvents func() // ends the goroutine that reads the events, and waits for it

	waits    context.Context // ends when the session stops waiting for its users
	stopWait func()

	mu      sync.Mutex // guards what follows
	users   []string   // by name, in order of arrival
	retired bool
	idle    chan struct{} // closed when the session is retired and has no users
}

func newSession(dev *guard.Device, instance uint64) *Session {
	s := &Session{
		Device:   dev,
		Instance: instance,
		watchers: map[hca.ObjectID]func(hca.AsyncEvent){},
		idle:     make(chan struct{}),
	}
	s.waits, s.stopWait = context.WithCancel(context.Background())
	return s
}

// Acquire adds a user, whose name appears in logs. It returns false if the session has ended.
func (s *Session) Acquire(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.users = append(s.users, who)
	return true
}

// Release undoes an Acquire with the same name. Without one it does nothing.
func (s *Session) Release(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.users, who); i >= 0 {
		s.users = slices.Delete(s.users, i, i+1)
		s.checkIdle()
	}
}

// retire ends the session: it accepts no new users, and idle is closed once the last
// user has released it. Further calls return false.
func (s *Session) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.retired = true
	s.checkIdle()
	return true
}

func (s *Session) checkIdle() {
	if s.retired && len(s.users) == 0 {
		close(s.idle)
	}
}

// abandon stops waiting for the users: their handles become zombies.
func (s *Session) abandon() {
	s.Fail(errAbandoned)
	s.stopWait()
}

// usedBy returns the names of the users.
func (s *Session) usedBy() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}
