package device

import (
	"sync"

	"ipoibd/hca"
)

// Session is one opened instance of a device, held open by its users.
type Session struct {
	hca.Device
	Instance uint64 // counts from 1

	mu      sync.Mutex
	users   int
	retired bool
	idle    chan struct{} // closed when retired and without users
}

func newSession(dev hca.Device, instance uint64) *Session {
	return &Session{Device: dev, Instance: instance, idle: make(chan struct{})}
}

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
