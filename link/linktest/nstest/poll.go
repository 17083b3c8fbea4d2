package nstest

import "time"

// Poll calls ok until it returns true, and reports whether it did within limit. Between two calls it waits four times as
// long as the last one took, but between 10 and 250 ms: checks that run programs would otherwise take the processor from
// what they wait for.
func Poll(limit time.Duration, ok func() bool) bool {
	const shortest, longest = 10 * time.Millisecond, 250 * time.Millisecond
	for start := time.Now(); ; {
		before := time.Now()
		switch {
		case ok():
			return true
		case time.Since(start) > limit:
			return false
		}
		time.Sleep(min(max(shortest, 4*time.Since(before)), longest))
	}
}
