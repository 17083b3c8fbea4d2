package guard_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Posting, polling, waiting and failing run concurrently on a real backend. Posting and
// polling end, and no request completes that was not posted.
func TestR18FailUnderLoad(t *testing.T) {
	for i := range 50 {
		l := newLoop(t, func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) })
		posted, completed := make(chan int, 1), make(chan int, 1)
		go func() { posted <- l.postUntilDead() }()
		go func() { completed <- l.pollUntilDead() }()
		for range i * 20 {
			runtime.Gosched()
		}
		l.dev.(*guard.Device).Fail(errBoom)
		if p, a := <-posted, <-completed; p < a {
			t.Errorf("run %d: %d posted, %d completed", i, p, a)
		}
		l.close()
	}
}

func (l *loop) postUntilDead() (total int) {
	for {
		n, err := l.qp.PostSend(l.wrs)
		total += n
		switch {
		case errors.Is(err, hca.ErrIO):
			return total
		case err != nil:
			runtime.Gosched() // the queue is full
		}
	}
}

func (l *loop) pollUntilDead() (total int) {
	wc := make([]hca.WC, 32)
	for {
		n, err := l.send.Poll(wc)
		total += n
		if err != nil {
			return total
		}
		if n == 0 && (l.send.Arm() != nil || l.send.Wait(time.Now().Add(time.Millisecond)) != nil) {
			runtime.Gosched()
		}
	}
}
