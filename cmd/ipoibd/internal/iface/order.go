package iface

import "time"

// turn is one look at what lies waiting for Run, channel by channel in the order
// in which it is to be taken: once something was found, the channels that follow
// are left alone until the next turn.
type turn struct{ found bool }

// listen returns a channel to receive from in this turn, nil where one before it
// has something.
func listen[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	t.found = len(ch) > 0
	return ch
}

// last is listen for what comes last, maybe in floods, of which none may keep
// another waiting.
func last[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	return ch
}

// alarm is listen for a timer. Where it is due the time has come, whether or not
// the timer has fired yet.
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
