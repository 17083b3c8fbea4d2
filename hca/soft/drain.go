package soft

import (
	"context"
	"sync"
	"time"
)

// backPressure is how long sends wait for a transport that is full, and how long messages
// that arrived wait for a receive. A busy link or a busy owner makes room for some frames in
// far less time, and a caller considers a device stopped only after far more.
const backPressure = 5 * time.Millisecond

// drain is the list of send queues that found the transport full.
type drain struct {
	mu     sync.Mutex
	queues []*queue
	wake   chan struct{}
}

func (r *drain) init() { r.wake = make(chan struct{}, 1) }

func (r *drain) add(q *queue) {
	r.mu.Lock()
	r.queues = append(r.queues, q)
	r.mu.Unlock()
	notify(r.wake)
}

// removeAll empties the list and returns its queues.
func (r *drain) removeAll() []*queue {
	r.mu.Lock()
	defer r.mu.Unlock()
	queues := r.queues
	r.queues = nil
	return queues
}

// drainLoop resumes blocked send queues until the device closes. It waits for all of
// them together. If the transport made no room within backPressure, each queue drops
// the sends that still do not fit, so no queue waits longer, however many queues or
// sends there are. A queue that blocks during a wait shares the rest of that wait,
// which may be short. An error of WaitWritable ends the wait as well; the next Send
// reports its cause.
func (l *lane) drainLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.drain.wake:
		}
		wait, cancel := context.WithTimeout(ctx, backPressure)
		err := l.wire.WaitWritable(wait)
		cancel()
		for _, q := range l.drain.removeAll() {
			q.sendMu.Lock()
			q.blocked = false
			q.pump(err != nil)
			q.sendMu.Unlock()
			l.dev.settle()
		}
	}
}

// WireBlocked implements [hca.WireReporter].
func (d *Device) WireBlocked() (n uint64) {
	for _, l := range d.lanes {
		n += l.wire.Blocked()
	}
	return n
}
