package bound

import "testing"

// Work on more bytes takes longer, and what is done twice takes twice as long.
func TestBoundsGrowWithTheBytes(t *testing.T) {
	for name, of := range map[string]func(int) Work{"copy": Copy, "CRC": CRC, "read": Read, "access": Access} {
		small, large := measure(of(1<<10).do), measure(of(1<<20).do)
		t.Logf("%s: %.1f ns, %.1f ns", name, small, large)
		if small <= 0 || large < small {
			t.Errorf("%s: %.1f ns for 1 KiB, %.1f ns for 1 MiB", name, small, large)
		}
	}
	if w := Times(64, Copy(1)); w.times != 64 {
		t.Errorf("64 times is %d times", w.times)
	}
}

// Access visits all lines before it returns to the first one.
func TestAccessVisitsEveryLine(t *testing.T) {
	const n = 1000
	w, seen := Access(n), map[uint32]bool{}
	results.place = 0
	for range n {
		w.do()
		seen[results.place] = true
	}
	if len(seen) != n || results.place != 0 {
		t.Errorf("%d of %d lines, the last one is %d", len(seen), n, results.place)
	}
}
