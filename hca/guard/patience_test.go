package guard

import (
	"testing"
	"testing/synctest"
	"time"
)

// A stall of this process, however long, uses up a quarter of the timeout: the
// device is judged by what it does afterwards.
func TestR19StallIsNoFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatience(0, 4*time.Second)
		defer p.stop()
		time.Sleep(time.Hour) // nobody looks at the timer meanwhile
		resumed := time.Now()
		for <-p.timer.C; !p.spent(); <-p.timer.C {
		}
		if d := time.Since(resumed); d != 3*time.Second {
			t.Errorf("spent %v after the stall", d)
		}
	})
}
