package iface

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	var b backoff
	now := time.Unix(0, 0)
	fails := func(want ...time.Duration) {
		t.Helper()
		for _, w := range want {
			b.fail(now)
			if b.pause != w {
				t.Fatalf("pause %s, want %s", b.pause, w)
			}
			if due(&b.at, now) || due(&b.at, now.Add(w-1)) {
				t.Fatalf("tried again before %s", w)
			}
			now = now.Add(w)
			if !due(&b.at, now) || due(&b.at, now) {
				t.Fatalf("not due once after %s", w)
			}
		}
	}
	if due(&b.at, now) {
		t.Error("the zero value waits")
	}
	fails(1*time.Second, 2*time.Second, 4*time.Second, 8*time.Second, 16*time.Second, 16*time.Second)
	b.succeed(now)
	now = now.Add(lastRetry - 1)
	fails(16 * time.Second) // a short success does not count
	b.succeed(now)
	now = now.Add(lastRetry)
	fails(1*time.Second, 2*time.Second)
	b = backoff{}
	fails(1 * time.Second)
}
