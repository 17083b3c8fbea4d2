package guard

import (
	"testing"
	"testing/synctest"
	"time"
)

// A stall of this process, however long, consumes only a quarter of the timeout.
func TestR19StallIsNoFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatience(4 * time.Second)
		defer p.timer.Stop()
		time.Sleep(time.Hour) // the timer is not read in the meantime
		resumed := time.Now()
		for <-p.timer.C; !p.spent(); <-p.timer.C {
		}
		if d := time.Since(resumed); d != 3*time.Second {
			t.Errorf("spent %v after the stall", d)
		}
	})
}
