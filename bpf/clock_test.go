package bpf

import (
	"errors"
	"testing"
	"time"
)

// TestClockIsNotBehind: a process that loses its processor between the readings of the two clocks has a clock that is
// neither behind CLOCK_MONOTONIC nor far ahead of it.
func TestClockIsNotBehind(t *testing.T) {
	const lost = 100 * time.Millisecond
	for _, c := range []struct {
		name   string
		before bool // the reading of CLOCK_MONOTONIC
	}{{"before", true}, {"after", false}} {
		times := 0
		clock, err := newClock(func() (now uint64, err error) {
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
		if err != nil || err2 != nil || ours < first || ours > second+uint64(lost)/2 {
			t.Errorf("%s: the clock is %v behind, %v ahead", c.name, time.Duration(first)-time.Duration(ours), time.Duration(ours)-time.Duration(second))
		}
	}
	if _, err := newClock(func() (uint64, error) { return 0, errors.New("no clock") }); err == nil {
		t.Error("no error")
	}
}
