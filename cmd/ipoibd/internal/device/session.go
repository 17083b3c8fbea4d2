package device

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"ipoibd/cmd/ipoibd/internal/subnet"
	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Session is one opened instance of a device, which its users hold open.
type Session struct {
	*guard.Device
	Instance uint64 // counts from 1; the generation of the device's machine

	watching sync.Mutex // held while a watcher is called, so that stop waits for it
	watchers map[hca.ObjectID]func(hca.AsyncEvent)
	subnets  subnets

	use    context.Context // ends when the session is retired and has no users, or does not wait for them
	endUse func()

	mu      sync.Mutex // guards what follows
	users   []string   // by name, in order of arrival
	retired bool
}

func newSession(dev *guard.Device, instance uint64, log *slog.Logger) *Session {
	s := &Session{
		Device:   dev,
		Instance: instance,
		watchers: map[hca.ObjectID]func(hca.AsyncEvent){},
		subnets:  subnets{log: log, ports: map[uint8]*subnet.Port{}},
	}
	s.use, s.endUse = context.WithCancel(context.Background())
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
		if s.retired && len(s.users) == 0 {
			s.endUse()
		}
	}
}

// retire ends the session: it accepts no new users, and its use ends once the last user has
// released it. It is idempotent.
func (s *Session) retire() {
	s.mu.Lock()
	s.retired = true
	if len(s.users) == 0 {
		s.endUse()
	}
	s.mu.Unlock()
	s.subnets.stop()
}

// abandon stops waiting for the users: their handles become zombies.
func (s *Session) abandon() {
	s.Fail(errAbandoned)
	s.endUse()
}

// usedBy returns the names of the users.
func (s *Session) usedBy() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}
