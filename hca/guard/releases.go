package guard

// releases is the queue of objects to close in the backend of a failed device: closed for
// their callers, without children and without current verbs. Device.mu guards it.
type releases struct {
	queue   []*object
	running bool // releaseQueued runs
}

// queueRelease queues o if its deferred release can be done now. Device.mu is held.
func (d *Device) queueRelease(o *object) {
	if !o.deferred || o.uses > 0 {
		return
	}
	o.deferred = false
	d.releases.queue = append(d.releases.queue, o)
	if !d.releases.running {
		d.releases.running = true
		go d.releaseQueued()
	}
}

// releaseQueued closes the queued objects, then ends. If the backend hangs in one release,
// the others wait, so that releases block only one thread.
func (d *Device) releaseQueued() {
	for o := d.nextRelease(); o != nil; o = d.nextRelease() {
		if err := o.close(); err != nil {
			d.counts.releasesFailed.Add(1)
		}
		o.gone()
	}
}

func (d *Device) nextRelease() *object {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.releases.queue) == 0 {
		d.releases.running = false
		return nil
	}
	o := d.releases.queue[0]
	d.releases.queue = d.releases.queue[1:]
	return o
}
