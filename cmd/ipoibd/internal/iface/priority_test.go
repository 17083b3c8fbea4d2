package iface

import (
	"testing"
	"time"
)

// The first channel that has something is served; those after it are not even listened to.
func TestTurnLeavesAloneWhatFollows(t *testing.T) {
	full, empty := make(chan int, 1), make(chan int, 1)
	full <- 1
	for _, c := range []struct {
		name     string
		channels []chan int
		listened int
	}{
		{"nothing waits", []chan int{empty, empty, empty}, 3},
		{"the first waits", []chan int{full, empty, full}, 1},
		{"the second waits", []chan int{empty, full, empty}, 2},
		{"the last waits", []chan int{empty, empty, full}, 3},
		{"one is not there", []chan int{nil, full, full}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var now turn
			for i, ch := range c.channels {
				want := ch
				if i >= c.listened {
					want = nil
				}
				if got := listen(&now, ch); got != want {
					t.Errorf("channel %d: %v, want %v", i, got, want)
				}
			}
		})
	}
}

// A deadline that has passed is before what follows, and behind what was found.
func TestTurnKnowsWhatIsDue(t *testing.T) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	full := make(chan int, 1)
	full <- 1

	var idle turn
	if idle.alarm(timer, false) != timer.C || listen(&idle, full) == nil {
		t.Error("a deadline to come: neither the timer nor what follows is left alone")
	}
	var late turn
	select {
	case <-late.alarm(timer, true):
	default:
		t.Error("a deadline that has passed waits for the timer")
	}
	if listen(&late, full) != nil {
		t.Error("what follows comes before a deadline that has passed")
	}
	var busy turn
	listen(&busy, full)
	if busy.alarm(timer, true) != nil {
		t.Error("a deadline that has passed comes before waiting input")
	}
}

// Floods wait for everything else, but not for each other.
func TestTurnLetsNoFloodKeepAnotherWaiting(t *testing.T) {
	one, other := make(chan int, 1), make(chan int, 1)
	one <- 1
	other <- 1
	var idle turn
	if last(&idle, one) == nil || last(&idle, other) == nil {
		t.Error("a flood keeps another waiting")
	}
	var busy turn
	listen(&busy, one)
	if last(&busy, other) != nil {
		t.Error("a flood comes beside waiting input")
	}
}
