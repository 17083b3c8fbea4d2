package guard

// graves are the objects that the backend has still and nobody else: closed in a
// failed device, without children and without verbs under way. Device.mu guards
// them.
type graves struct {
	queue   []*object
	digging bool // the one goroutine that closes them runs
}

// undertake queues o when it is due. Device.mu is held.
func (d *Device) undertake(o *object) {
	if !o.bury || o.uses > 0 {
		return
	}
	o.bury = false
	d.graves.queue = append(d.graves.queue, o)
	if !d.graves.digging {
		d.graves.digging = true
		go d.dig()
	}
}

// dig closes what is queued, then ends. A backend that hangs in one release keeps
// the others waiting: one thread is all that it gets.
func (d *Device) dig() {
	for o := d.nextGrave(); o != nil; o = d.nextGrave() {
		if err := o.close(); err != nil {
			d.counts.releasesFailed.Add(1)
		}
		o.gone()
	}
}

func (d *Device) nextGrave() *object {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.graves.queue) == 0 {
		d.graves.digging = false
		return nil
	}
	o := d.graves.queue[0]
	d.graves.queue = d.graves.queue[1:]
	return o
}
