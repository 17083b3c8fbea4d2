package link

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

const (
	// stateRetry is the pause before a state that could not be read is read again.
	stateRetry = 50 * time.Millisecond
	// readingPause is the minimum time from the start of one reading to the next: 20
	// readings/s.
	readingPause = 50 * time.Millisecond
	// readingShare bounds the share of time spent reading to 1/readingShare, for an
	// interface with so many addresses that a reading takes long.
	readingShare = 20
	// readingDelay bounds the pause that readingShare causes.
	readingDelay = time.Second
)

// Watch implements [Device]. It subscribes before it reads the first state, so it misses no
// change.
func (t *TAP) Watch(ctx context.Context) (<-chan State, error) {
	t.watchMu.Lock()
	defer t.watchMu.Unlock()
	if t.tun.open.Err() != nil {
		return nil, fmt.Errorf("watch %s: %w", t.tun.name, ErrClosed)
	}
	sock, err := t.dev.subscribeHome()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", t.tun.name, classify(err))
	}
	w := &watcher{state: t.State, events: sock, out: make(chan State, 1)}
	t.watchers.Go(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(t.tun.open, cancel)
		defer stop()
		w.run(ctx)
	})
	return w.out, nil
}

// watcher is one Watch; its goroutine owns it.
type watcher struct {
	state  func() (State, error)
	events *kernel.Notifications
	out    chan State
	last   State // the state published last; valid if begun
	begun  bool
	up     bool // as the last message or, at the start, the first state says
	downs  uint64
}

// run ends with ctx, whose end closes the socket and so ends a drain. However many messages
// come, run drains the socket only as often as it may read the state. In the meantime
// messages are queued, or lost, which also causes a reading.
func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	context.AfterFunc(ctx, func() { _ = w.events.Close() })
	for changed := true; ctx.Err() == nil; {
		start := time.Now()
		if changed {
			s, ok := w.read(ctx)
			s.Downs = w.downs
			if ok && (!w.begun || !reflect.DeepEqual(s, w.last)) {
				w.put(s)
			}
		}
		sleep(ctx, untilNext(time.Since(start)))
		changed, _ = w.events.Drain(w.concerns) // an error means that ctx has ended
	}
}

// untilNext returns the pause after a reading.
func untilNext(took time.Duration) time.Duration {
	return min(max(readingPause-took, (readingShare-1)*took), readingDelay)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// concerns reports whether a message may concern the interface, its master, or the removal
// of their namespace. The same index in another namespace causes an unnecessary reading.
func (w *watcher) concerns(msg []byte) bool {
	i := kernel.ParseInterface(msg)
	if i.Kind == unix.RTM_NEWLINK && i.Index != 0 && i.Index == w.last.Index {
		if w.up && i.Down {
			w.downs++
		}
		w.up = !i.Down
	}
	return i.Kind == unix.RTM_DELNSID ||
		i.Index != 0 && (i.Index == w.last.Index || i.Index == w.last.Master)
}

// read reads the state, until it succeeds or ctx ends.
func (w *watcher) read(ctx context.Context) (State, bool) {
	for ctx.Err() == nil {
		s, err := w.state()
		if err == nil {
			return s, true
		}
		if errors.Is(err, ErrClosed) {
			break
		}
		sleep(ctx, stateRetry)
	}
	return State{}, false
}

// put publishes a state. It replaces a state that was not yet received. There is no other
// sender, so put does not block.
func (w *watcher) put(s State) {
	if !w.begun {
		w.up = s.Up
	}
	w.last, w.begun = s, true
	select {
	case <-w.out:
	default:
	}
	w.out <- s
}
