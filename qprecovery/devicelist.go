package qprecovery

import "slices"

// listing is what the list of devices says.
type listing struct {
	devices []Identity
	absent  bool   // the device is not among them
	ours    bool   // its removal was the work of a reset
	last    uint64 // the Refresh given out last
	op      uint64 // the one that is unanswered; 0: none
	again   bool   // its answer is too old, and another one is needed
	foreign foreigners
}

// listed takes a list. An answer to a Refresh that a later list has overtaken is asked
// for again.
func (d *DeviceLadder) listed(ev Listed) {
	switch {
	case ev.Op == 0:
		d.list.again = d.list.op != 0
	case ev.Op != d.list.op:
		d.history.counts.Stale++
		return
	default:
		d.list.op = 0
		if d.list.again {
			d.list.again = false
			d.refresh(true)
			return
		}
		d.reset.reading = false
	}
	d.list.devices = ev.Devices
	switch {
	case d.born:
		d.compare()
	case d.state == DeviceStarting:
		d.openFirst()
	}
}

// compare looks for the device in the list: whether it has gone, come, or been replaced
// by another instance.
func (d *DeviceLadder) compare() {
	i := slices.IndexFunc(d.list.devices, d.id.Same)
	if exact := slices.Index(d.list.devices, d.id); exact >= 0 {
		i = exact
	}
	was, ours := d.list.absent, d.ours()
	if d.list.absent = i < 0; d.list.absent {
		if !was {
			d.gone()
		}
		if i = d.foreigner(); i < 0 {
			return
		}
		d.list.absent = false
	}
	if was {
		ours = d.list.ours
	}
	before := d.id.Index
	d.id = d.list.devices[i]
	if otherInstance(before, d.id.Index) {
		d.replaced(ours)
	} else if was && d.state == DeviceWaiting {
		d.proceed(ReasonDeviceBack)
	}
}

// foreigner returns the place of another device that is to be used, or -1; each that is
// not is reported once.
func (d *DeviceLadder) foreigner() int {
	if d.state == DeviceHealthy {
		return -1
	}
	for i, id := range d.list.devices {
		if d.cfg.AllowForeign {
			return i
		}
		if d.list.foreign.add(id) {
			d.emit(ReportForeign{id})
		}
	}
	return -1
}

// ours reports whether a change of instance is the work of a reset: one that may have begun,
// since nothing of ours was open any more, or that ended just now.
func (d *DeviceLadder) ours() bool {
	begun := d.state == DeviceDropping && d.reset.wanted && d.reset.pending != 0 && d.reset.released
	return begun || d.now.Before(d.reset.settled)
}

// gone takes the removal of the device. A pause goes on where that is the work of the
// reset that the pause is for.
func (d *DeviceLadder) gone() {
	d.list.ours = d.ours()
	switch d.state { //nolint:exhaustive // elsewhere the verdict takes it into account
	case DeviceHealthy:
		d.apply(deviceCauseRemoved, ReasonRemoved)
	case DeviceDropping:
		d.reset.unplug = d.reset.wanted && !d.list.ours
	case DevicePausing:
		if d.list.ours {
			d.owed = d.op.due.Sub(d.now)
		}
		d.apply(deviceCauseAbsent, ReasonRemoved)
	}
}

// replaced takes another instance of the device. It is fresh, unless a zombie of ours may
// still hold something of the one before; and unless a reset made it, the resets of that
// one say nothing about it.
func (d *DeviceLadder) replaced(ours bool) {
	if !ours {
		d.budget.forgive(RungDevice)
		d.owed = 0
	}
	if d.session.state == sessionNone && !d.session.abandoned {
		d.hold = holdFresh
	}
	switch d.state { //nolint:exhaustive // elsewhere the verdict takes it into account
	case DeviceHealthy:
		d.apply(deviceCauseRemoved, ReasonRemoved)
	case DeviceDropping:
		d.reset.unplug = d.reset.wanted && !ours
	case DeviceWaiting:
		d.proceed(ReasonDeviceBack)
	}
}

// refresh has the list read. With again it is read once more after a reading that is under
// way, since that may be too old.
func (d *DeviceLadder) refresh(again bool) {
	switch {
	case !d.cfg.Lists:
	case d.list.op != 0:
		d.list.again = d.list.again || again
	default:
		d.list.last++
		d.list.op = d.list.last
		d.emit(Refresh{d.list.op})
	}
}
