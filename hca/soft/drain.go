package soft

import (
	"context"
	"sync"
)

// drain is the list of QPs whose send queues found the transport full.
type drain struct {
	mu   sync.Mutex
	qps  []*QP
	wake chan struct{}
}

func (r *drain) init() { r.wake = make(chan struct{}, 1) }

func (r *drain) add(q *QP) {
	r.mu.Lock()
	r.qps = append(r.qps, q)
	r.mu.Unlock()
	notify(r.wake)
}

// take empties the list.
func (r *drain) take() []*QP {
	r.mu.Lock()
	defer r.mu.Unlock()
	qps := r.qps
	r.qps = nil
	return qps
}

// drainLoop goes on with blocked send queues until the device closes or the
// transport fails.
func (d *Device) drainLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.drain.wake:
		}
		if err := d.wire.WaitWritable(ctx); err != nil {
			return
		}
		for _, q := range d.drain.take() {
			q.resume()
		}
	}
}

// resume goes on where the transport was full.
func (q *QP) resume() {
	q.sendMu.Lock()
	q.blocked = false
	q.pump()
	q.sendMu.Unlock()
	q.dev.settle()
}
