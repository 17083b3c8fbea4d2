package verbs

import (
	"errors"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
)

// life guards an object of libibverbs: the object must not be used after it is destroyed,
// nor destroyed while it is in use.
type life struct {
	mu       sync.RWMutex // held for reading by a call that uses the object, for writing by close
	closed   bool
	children atomic.Int32
}

// enter starts a call that uses the object; leave ends it. enter never blocks: while close
// waits or destroys, which may take forever, it returns ErrClosed.
func (l *life) enter() error {
	if !l.mu.TryRLock() {
		return hca.ErrClosed
	}
	if l.closed {
		l.mu.RUnlock()
		return hca.ErrClosed
	}
	return nil
}

func (l *life) leave() { l.mu.RUnlock() }

// adopt counts a child; the caller is between enter and leave.
func (l *life) adopt() { l.children.Add(1) }

// close waits for the current calls and destroys the object, once. It returns ErrBusy while
// the object has children. If destroy fails, the object stays usable, unless the device is
// gone, and with it the object.
func (l *life) close(destroy func() error, parents ...*life) error {
	if l.children.Load() > 0 { // before the lock, under which other calls would be refused
		return hca.ErrBusy
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil
	case l.children.Load() > 0:
		return hca.ErrBusy
	}
	if err := destroy(); err != nil && !errors.Is(err, hca.ErrIO) {
		return err
	}
	l.closed = true
	for _, p := range parents {
		p.children.Add(-1)
	}
	return nil
}
