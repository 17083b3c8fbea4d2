package hca

import (
	"testing"
	"time"
)

// Each duration is counted in the first bucket whose bound it does not exceed.
func TestDurations(t *testing.T) {
	var d Durations
	for _, c := range []struct {
		took   time.Duration
		bucket int
	}{
		{0, 0},
		{-time.Second, 0},
		{100 * time.Microsecond, 0},
		{100*time.Microsecond + 1, 1},
		{time.Second, 8},
		{300 * time.Second, len(DurationBounds) - 1},
		{301 * time.Second, len(DurationBounds)},
	} {
		before := d
		d.Observe(c.took)
		if d.Buckets[c.bucket] != before.Buckets[c.bucket]+1 || d.Count != before.Count+1 || d.Sum != before.Sum+max(c.took, 0) {
			t.Errorf("%v: %+v", c.took, d)
		}
	}
	for i := range DurationBounds[1:] {
		if DurationBounds[i] >= DurationBounds[i+1] {
			t.Errorf("the bounds do not ascend at %v", DurationBounds[i])
		}
	}
}
