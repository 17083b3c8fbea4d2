package qprecovery

import "time"

// budget counts the uses of rungs on a clock that runs only in health, so that
// uses do not expire during recovery or back-off.
type budget struct {
	health  time.Duration
	resumed time.Time // when health began; zero if not in health
	marks   [NumRung][]time.Duration
}

// healthy starts the clock, ill stops it.
func (b *budget) healthy(now time.Time) { b.health, b.resumed = b.at(now), now }

func (b *budget) ill(now time.Time) { b.health, b.resumed = b.at(now), time.Time{} }

// at reads the clock.
func (b *budget) at(now time.Time) time.Duration {
	if b.resumed.IsZero() {
		return b.health
	}
	return b.health + max(0, now.Sub(b.resumed))
}

// spent reports whether a rung's allowance is used up. A rung without an
// allowance is never spent.
func (b *budget) spent(now time.Time, r Rung) bool {
	b.expire(now, r)
	return rungs[r].uses > 0 && len(b.marks[r]) >= rungs[r].uses
}

// use counts one use; beyond the allowance it replaces the oldest one.
func (b *budget) use(now time.Time, r Rung) {
	if rungs[r].uses == 0 {
		return
	}
	if b.spent(now, r) {
		b.marks[r] = b.marks[r][1:]
	}
	b.marks[r] = append(b.marks[r], b.at(now))
}

// expire drops the uses that are older than the window.
func (b *budget) expire(now time.Time, r Rung) {
	for len(b.marks[r]) > 0 && b.at(now)-b.marks[r][0] >= rungs[r].window {
		b.marks[r] = b.marks[r][1:]
	}
}

// resetBudget limits how often a device that keeps failing is opened again.
type resetBudget struct {
	budget
	pause time.Duration // the last one before an opening
	owed  time.Duration // the pause that is due before the next opening
}

// failed counts a failure of the device, regardless of the outcome of its reset. After too many
// failures a pause is due before the device is opened again.
func (b *resetBudget) failed(now time.Time) {
	last := b.pause
	b.pause = 0
	if b.spent(now, RungDevice) {
		b.pause = BackOff(last, resetPauseFirst, resetPauseMost)
	}
	b.owed = b.pause
	b.use(now, RungDevice)
}

// forgive drops all uses, because another instance is present.
func (b *resetBudget) forgive() { b.marks[RungDevice], b.owed = nil, 0 }

// BackOff returns the next pause of a sequence that doubles from first to most.
func BackOff(last, first, most time.Duration) time.Duration {
	return min(max(first, 2*last), most)
}
