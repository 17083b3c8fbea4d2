package iface

import "time"

// turn gives the channels of Run's select a priority: it examines them one by one, in the
// order in which they are to be served. Once one has something, it hides the channels
// that follow until the next turn.
type turn struct{ found bool }

// listen returns the channel to receive from in this turn, or nil if an earlier one has
// something.
func listen[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	t.found = len(ch) > 0
	return ch
}

// last is listen for the channels of the lowest priority. Among them there is no order: a
// flood on one does not keep another waiting.
func last[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	return ch
}

// alarm is listen for a timer. If the deadline is due, alarm delivers even if the timer has
// not fired yet.
func (t *turn) alarm(timer *time.Timer, due bool) <-chan time.Time {
	switch {
	case t.found:
		return nil
	case due:
		t.found = true
		return overdue
	}
	return timer.C
}

// overdue always delivers.
var overdue = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()
