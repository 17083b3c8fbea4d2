package qprecovery

import "time"

// allowance is how often a rung may be used within a window of health before
// its success does not count as a cure any more.
type allowance struct {
	uses   int
	window time.Duration
}

// allowances of the rungs that repetition escalates (R6). The windows grow with
// the medicine: what costs more is expected to last longer. A fault that needs
// the same rung more often than this is not cured by it.
var allowances = [NumRung]allowance{
	RungNone:       {5, 10 * time.Second}, // queries that find RTS
	RungResumeQP:   {5, 10 * time.Second}, // costs nothing that is posted
	RungResetQP:    {3, 10 * time.Second}, // "fails again soon" of R2
	RungRecreateQP: {3, time.Minute},      // changes the QPN: peers must relearn it
	RungRebuildCQ:  {3, time.Minute},      // from then on with back-off
	RungDevice:     {3, 10 * time.Minute}, // field value: three in a row
}

// budget counts the uses of rungs on a clock that runs only in health, so that
// time spent in recovery or in a back-off forgives nothing.
type budget struct {
	health  time.Duration
	resumed time.Time // health began; zero while there is none
	marks   [NumRung][]time.Duration
}

// healthy and ill start and stop the clock.
func (b *budget) healthy(now time.Time) { b.health, b.resumed = b.at(now), now }

func (b *budget) ill(now time.Time) { b.health, b.resumed = b.at(now), time.Time{} }

// at reads the clock.
func (b *budget) at(now time.Time) time.Duration {
	if b.resumed.IsZero() {
		return b.health
	}
	return b.health + max(0, now.Sub(b.resumed))
}

// spent reports whether a rung has used up its allowance. A rung without one is
// never spent.
func (b *budget) spent(now time.Time, r Rung) bool {
	b.forget(now, r)
	return allowances[r].uses > 0 && len(b.marks[r]) >= allowances[r].uses
}

// use counts one use; what is beyond the allowance pushes the oldest out.
func (b *budget) use(now time.Time, r Rung) {
	if allowances[r].uses == 0 {
		return
	}
	if b.spent(now, r) {
		b.marks[r] = b.marks[r][1:]
	}
	b.marks[r] = append(b.marks[r], b.at(now))
}

// forget drops the uses that are a window of health ago.
func (b *budget) forget(now time.Time, r Rung) {
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
