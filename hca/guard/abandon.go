package guard

import "ipoibd/hca"

// AbandonCall gives up a post, or a method of a CQ, that hangs in the backend (R19): the device fails,
// and nothing of it is released in the backend until the call has returned. Whoever made the call
// then calls returned, once, and touches nothing else. AbandonCall does not block, and any goroutine
// may call it.
func (d *Device) AbandonCall() (returned func()) {
	d.counts.abandoned.Add(1)
	d.counts.stuck.Add(1)
	d.hung.Store(true)
	d.mu.Lock()
	d.inside++
	d.hanging++
	d.mu.Unlock()
	d.Fail(hca.ErrStuck)
	return func() {
		d.counts.stuck.Add(-1)
		d.counts.late.Add(1)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.leave()
		if d.hanging--; d.hanging > 0 {
			return
		}
		for _, o := range d.kept {
			d.queue(o)
		}
		d.kept = nil
	}
}
