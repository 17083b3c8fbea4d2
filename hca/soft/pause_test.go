package soft

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
)

// While a device is paused, messages wait in the transport; afterwards they are delivered.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.postRecv(4)
		for range 2 {
			if err := r.dev.Pause(); err != nil {
				t.Fatal(err)
			}
			before := r.counted("rx_packets")
			r.port.Inject(r.message(nil))
			time.Sleep(2 * standInAfter)
			r.wantCounts(map[string]uint64{"rx_packets": before})
			r.dev.Resume()
			time.Sleep(2 * standInAfter)
			r.wantCounts(map[string]uint64{"rx_packets": before + 1})
		}
		if err := r.dev.Pause(); err != nil {
			t.Fatal(err)
		}
		r.close() // also while it is paused
		if err := r.dev.Pause(); err == nil {
			t.Error("a closed device is paused")
		}
	})
}

// After a pause that has failed, because an owner posts no receives, the device receives again although no owner waits
// for completions.
func TestPauseThatFails(t *testing.T) {
	r := newRig(t, nil) // in real time: a pause does not sleep
	if err := errors.Join(r.recv.Arm(), r.recv.Wait(time.Now().Add(standInAfter/10))); err != nil {
		t.Fatal(err)
	}
	time.Sleep(standInAfter / 10)
	r.port.Inject(r.message(nil)) // no goroutine receives now; the stand-in would begin during the pause
	if err := r.dev.Pause(); !errors.Is(err, hca.ErrBusy) {
		t.Fatalf("paused while a message waits for a receive: %v", err)
	}
	r.postRecv(1)
	r.port.Inject(r.message(nil))
	for end := time.Now().Add(10 * standInAfter); r.counted("rx_packets") < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no goroutine receives after the pause")
		}
	}
	r.close()
}

// A device that continues another one's queue pairs receives nothing before they have receives, and so
// loses no message for them; but it does not wait longer than a second.
func TestAwait(t *testing.T) {
	for _, c := range []struct {
		name  string
		await []hca.QPN
		after time.Duration // when it receives without further receives
	}{
		{"the queue pair", nil, 0},
		{"another one", []hca.QPN{0x123}, awaitLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const num = hca.QPN(0x4711)
				r := newRig(t, func(cfg *Config) { cfg.Await = append([]hca.QPN{num}, c.await...) })
				qp := have(r.pd.CreateQP(hca.QPSpec{Num: num, SendWRs: 1, RecvWRs: 4, SendSGEs: 1, RecvSGEs: 1}, r.send, r.recv))(t)
				if qp.Num() != num {
					t.Errorf("the queue pair has the number %v", qp.Num())
				}
				r.port.Inject(r.message(nil))
				time.Sleep(awaitLimit / 2)
				r.wantCounts(map[string]uint64{"rx_packets": 0})
				first := r.qp
				r.qp = qp
				r.up()
				r.postRecv(1)
				r.qp = first
				time.Sleep(2 * standInAfter) // the message finds no receive, and waits for one
				want := uint64(1)
				if c.after > 0 {
					want = 0
				}
				r.wantCounts(map[string]uint64{"rx_packets": want})
				time.Sleep(awaitLimit)
				r.wantCounts(map[string]uint64{"rx_packets": 1})
				if err := qp.Close(); err != nil {
					t.Error(err)
				}
				r.close()
			})
		})
	}
}

// A wanted number is used only if no other queue pair has it, and if it has no special meaning.
func TestWantedQPN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for _, want := range []hca.QPN{r.qp.Num(), 1, hca.QPNMulticast} {
			if n := r.dev.newQPN(want); n == want {
				t.Errorf("wanted %v, got %v", want, n)
			}
		}
		if n := r.dev.newQPN(0x1abc); n != 0x1abc {
			t.Errorf("wanted 0x1abc, got %v", n)
		}
		r.close()
	})
}
