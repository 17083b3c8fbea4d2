package qprecovery

import (
	"slices"
	"time"
)

// listing is what is known from the list of devices, and which of them is the device.
type listing struct {
	devices []Identity
	born    bool     // id is known: it has been open, or was to be reset before it could be opened
	id      Identity // of the device; zero: unknown
	absent  bool     // the device is not in the list
	ours    bool     // its removal was the work of a reset
	last    uint64   // the latest Refresh
	op      uint64   // the one that is unanswered; 0: none
	again   bool     // its answer will be too old, so another Refresh must follow
	dead    dead     // an absent device that is present on its bus
	foreign foreigners
}

// dead says when a device that is present but dead (Identity.Dead) is reset: later each time, so that
// the driver can bring it back itself.
type dead struct {
	is    bool
	due   time.Time     // of the next reset
	pause time.Duration // the latest one before a reset; 0: the device has not been dead since it was open
}

// begins notes that the device is dead.
func (d *dead) begins(now time.Time) {
	if d.pause = max(d.pause, deadFirst); !d.is && !d.due.After(now) {
		d.due = now.Add(d.pause)
	}
	d.is = true
}

// spent reports whether a reset is due, and plans the next one.
func (d *dead) spent(now time.Time) bool {
	if !d.is || !due(now, d.due) {
		return false
	}
	d.pause = BackOff(d.pause, deadFirst, resetPauseMost)
	d.due = now.Add(d.pause)
	return true
}

// identify returns whether the identity of the device is known. That of a device that was never
// open is the first in the list.
func (l *listing) identify() bool {
	if !l.born && len(l.devices) > 0 && !l.devices[0].Dead {
		l.born, l.id, l.absent = true, l.devices[0], false
	}
	return l.born
}

// opened notes the identity of the device, which was opened for the first time. The list knows its index.
func (l *listing) opened(id Identity) {
	l.born, l.id, l.absent = true, id, false
	if i := slices.IndexFunc(l.devices, id.Same); i >= 0 && !l.devices[i].Dead {
		l.id = l.devices[i]
	}
}

// has reports whether the instance of the device with an index is in the list.
func (l *listing) has(index uint32) bool { return !l.absent && !otherInstance(index, l.id.Index) }

// gone reports whether there is no device that could be reset.
func (l *listing) gone() bool { return l.absent && !l.dead.is }

// refresh requests the list. If a reading is already under way, again requests another one
// after it, because its result may be too old.
func (l *listing) refresh(again bool, out []DeviceAction) []DeviceAction {
	if l.op != 0 {
		l.again = l.again || again
		return out
	}
	l.last++
	l.op = l.last
	return append(out, Refresh{l.op})
}

// foreigner returns the index of another device to use instead, or -1. It reports each
// device that is not used once.
func (l *listing) foreigner(allowed bool, out []DeviceAction) (int, []DeviceAction) {
	for i, id := range l.devices {
		switch {
		case id.Dead:
			continue
		case allowed:
			return i, out
		}
		if l.foreign.add(id) {
			out = append(out, ReportForeign{id})
		}
	}
	return -1, out
}

// listed handles a list. If a later list has overtaken the answer to a Refresh, it requests
// another Refresh.
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
			d.out = d.list.refresh(true, d.out)
			return
		}
	}
	d.list.devices = ev.Devices
	_ = d.join() // an opening retries it, and fails without the locks
	switch {
	case d.list.born:
		d.compare()
	case d.state == DeviceStarting:
		d.openFirst()
	}
}

// compare finds out whether the device was removed, has appeared, or was replaced by another
// instance.
func (d *DeviceLadder) compare() {
	i := slices.IndexFunc(d.list.devices, d.list.id.Same)
	if exact := slices.Index(d.list.devices, d.list.id); exact >= 0 {
		i = exact
	}
	if i >= 0 && d.list.devices[i].Dead {
		d.list.dead.begins(d.now)
		i = -1
	} else {
		d.list.dead.is = false
	}
	was, ours := d.list.absent, !d.cfg.NoReset && d.reset.ours(d.now, d.state)
	if d.list.absent = i < 0; d.list.absent {
		if !was {
			d.gone(ours)
		}
		if i, d.out = d.list.foreigner(d.cfg.AllowForeign, d.out); i < 0 {
			return
		}
		d.list.absent = false
	}
	if was {
		ours = d.list.ours
	}
	before := d.list.id
	d.list.id = d.list.devices[i]
	if was || d.list.id != before {
		d.wait.pause = 0
	}
	switch {
	case otherInstance(before.Index, d.list.id.Index):
		d.replaced(ours)
	case d.state != DeviceWaiting:
	case was:
		d.proceed(ReasonDeviceBack)
	case d.list.id != before && d.session.hold != holdHeld: // it was renamed, so an opening failed by its former name
		d.proceed(ReasonRetry)
	}
}

// gone handles the removal of the device. A pause continues if the removal is an effect of
// the reset that led to the pause.
func (d *DeviceLadder) gone(ours bool) {
	d.list.ours, d.wait.pause = ours, 0
	switch d.state { //nolint:exhaustive // elsewhere the verdict takes it into account
	case DeviceHealthy:
		d.apply(deviceCauseRemoved, ReasonRemoved)
	case DeviceDropping:
		d.reset.unplug = d.reset.wanted && !ours
	case DevicePausing:
		if ours {
			d.budget.owed = d.op.due.Sub(d.now)
		}
		d.apply(deviceCauseAbsent, ReasonRemoved)
	}
}

// replaced handles another instance of the device. The new instance is fresh, whatever a zombie
// still holds of the previous one. Unless a reset created it, the resets of the previous one no
// longer count.
func (d *DeviceLadder) replaced(ours bool) {
	if !ours {
		d.budget.forgive()
	}
	if d.session.state == sessionNone {
		d.session.hold = holdFresh
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
