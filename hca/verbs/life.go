package verbs

import (
	"errors"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
)

// life is the life of an object of libibverbs, which must not be used once it
// is destroyed, nor be destroyed while it is used.
type life struct {
	mu       sync.RWMutex // held for reading by a call that uses the object, for writing by close
	closed   bool
	children atomic.Int32
}

// enter begins a call that uses the object; leave ends it. It never blocks: while
// close waits or destroys, which may take for ever, the answer is ErrClosed too.
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

// close waits for the calls under way and destroys the object, once. ErrBusy
// while it has children. Where destroying fails the object lives on, unless the
// device is gone, and the object with it.
func (l *life) close(destroy func() error, parents ...*life) error {
	if l.children.Load() > 0 { // told without a moment in which calls are refused
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
