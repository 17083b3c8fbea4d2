package soft

import (
	"fmt"
	"runtime"
	"time"

	"ipoibd/hca"
)

const (
	// pauseLimit bounds Pause. The messages that a lane has read, 128 at most, are delivered in
	// less than a millisecond, if their owners post receives.
	pauseLimit = 200 * time.Millisecond
	// awaitLimit bounds the wait for the QPs of Config.Await. They come within milliseconds,
	// and the buffers of the transports overflow in a tenth of a second at most.
	awaitLimit = time.Second
)

// Pause stops receiving at a boundary: what was read from the transports is delivered, and what
// arrives from then on stays in them, for this device after Resume, or for another process. The
// owners of the queue pairs must post receives meanwhile. Fast paths carry nothing; otherwise,
// sending is not affected. On error, ErrBusy or ErrClosed, the device is not paused. The caller
// serializes Pause and Resume.
func (d *Device) Pause() error {
	d.arrived(0)
	d.mu.Lock()
	closed := d.slow.closed
	d.mu.Unlock()
	if closed {
		return verb("pause", d.cfg.Name, hca.ErrClosed)
	}
	d.paused.Store(true)
	d.updateGates()
	until := time.Now().Add(pauseLimit)
	for _, l := range d.lanes {
		if !l.pause(until) {
			d.Resume()
			err := fmt.Errorf("its queue pairs have not taken all messages within %s: %w", pauseLimit, hca.ErrBusy)
			return verb("pause", d.cfg.Name, err)
		}
	}
	return nil
}

// Resume ends a pause. Idempotent.
func (d *Device) Resume() {
	for _, l := range d.lanes {
		l.resume()
	}
	d.paused.Store(false)
	d.updateGates()
}

// pause takes the turn for good, and delivers what was read. It returns false if that has not
// succeeded by the time until.
func (l *lane) pause(until time.Time) bool {
	t := &l.turn
	t.paused.Store(true)
	l.wire.Interrupt()
	select {
	case <-t.free:
	case <-time.After(time.Until(until)):
		t.paused.Store(false)
		return false
	}
	for time.Now().Before(until) {
		l.wire.Interrupt() // so that the transport returns only what it has read already
		if _, err := l.rx.batch(nil); err != nil {
			return true // the transport has failed, which its next use reports
		}
		if l.rx.n == 0 {
			return true
		}
		runtime.Gosched() // an owner may have to post receives
	}
	l.resume()
	return false
}

func (l *lane) resume() {
	if l.turn.paused.Swap(false) {
		l.turn.yield()
	}
}

// await waits for QPs before it ends the pause with which the device was opened; see Config.Await.
func (d *Device) await(qpns []hca.QPN) {
	if len(qpns) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow.await = map[hca.QPN]bool{}
	for _, n := range qpns {
		d.slow.await[n] = true
	}
	d.awaiting.Store(true)
	d.slow.patience = time.AfterFunc(awaitLimit, func() { d.arrived(0) })
}

// arrived records that a QP has receives, or, with 0, that the device waits no longer.
func (d *Device) arrived(n hca.QPN) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slow.patience == nil || d.slow.await == nil {
		return
	}
	if delete(d.slow.await, n); n != 0 && len(d.slow.await) > 0 {
		return
	}
	d.awaiting.Store(false)
	d.slow.await = nil
	d.slow.patience.Stop()
	d.Resume()
}
