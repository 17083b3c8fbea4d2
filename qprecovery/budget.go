package qprecovery

import "time"

// allowance is how often a rung may be used within a window of time in health
// before its success no longer counts as a cure.
type allowance struct {
	uses   int
	window time.Duration
}

// allowances of the rungs from which repetition escalates (R6). Costlier rungs
// have longer windows, because their effect is expected to last longer. A fault
// that needs a rung more often than this is not cured by that rung.
var allowances = [NumRung]allowance{
	RungNone:       {5, 10 * time.Second}, // queries that find RTS
	RungResumeQP:   {5, 10 * time.Second}, // loses no posted request
	RungResetQP:    {3, 10 * time.Second}, // "fails again soon" of R2
	RungRecreateQP: {3, time.Minute},      // changes the QPN, which peers must relearn
	RungRebuildCQ:  {3, time.Minute},      // then with back-off
	RungDevice:     {3, 10 * time.Minute}, // three in a row, as is usual in the field
}

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
	return allowances[r].uses > 0 && len(b.marks[r]) >= allowances[r].uses
}

// use counts one use; beyond the allowance it replaces the oldest one.
func (b *budget) use(now time.Time, r Rung) {
	if allowances[r].uses == 0 {
		return
	}
	if b.spent(now, r) {
		b.marks[r] = b.marks[r][1:]
	}
	b.marks[r] = append(b.marks[r], b.at(now))
}

// expire drops the uses that are older than the window.
func (b *budget) expire(now time.Time, r Rung) {
	for len(b.marks[r]) > 0 && b.at(now)-b.marks[r][0] >= allowances[r].window {
		b.marks[r] = b.marks[r][1:]
	}
}

// forgive drops all uses of a rung.
func (b *budget) forgive(r Rung) { b.marks[r] = nil }

// backOff returns the next pause of a sequence that doubles from first to most.
func backOff(last, first, most time.Duration) time.Duration {
	return min(max(first, 2*last), most)
}
