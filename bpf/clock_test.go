package bpf

import (
	"errors"
	"testing"
	"time"
)

// TestClocks: a process that loses its processor between the readings of the two clocks has a clock that is on one side of
// CLOCK_MONOTONIC and near it.
func TestClocks(t *testing.T) {
	const lost = 100 * time.Millisecond
	for _, c := range []struct {
		name       string
		before     bool // the reading of CLOCK_MONOTONIC
		of         func(read func() (uint64, error)) (clock, error)
		late, fast time.Duration // the clock may be at most
	}{
		{"not behind, before", true, newClock, 0, lost / 2},
		{"not behind, after", false, newClock, 0, lost / 2},
		{"not ahead, before", true, clockBehind, lost / 2, 0},
		{"not ahead, after", false, clockBehind, lost / 2, 0},
	} {
		times := 0
		clock, err := c.of(func() (now uint64, err error) {
			if times++; times != 1 {
				return monotonic()
			}
			if c.before {
				time.Sleep(lost)
			}
			now, err = monotonic()
			if !c.before {
				time.Sleep(lost)
			}
			return now, err
		})
		if err != nil {
			t.Fatal(err)
		}
		first, err := monotonic()
		ours := clock.now()
		second, err2 := monotonic()
		if err != nil || err2 != nil || ours+uint64(c.late) < first || ours > second+uint64(c.fast) {
			t.Errorf("%s: the clock is %v behind, %v ahead", c.name, time.Duration(first)-time.Duration(ours), time.Duration(ours)-time.Duration(second))
		}
	}
	if _, err := newClock(func() (uint64, error) { return 0, errors.New("no clock") }); err == nil {
		t.Error("no error")
	}
}
