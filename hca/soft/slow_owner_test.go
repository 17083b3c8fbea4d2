package soft

import (
	"testing"
	"time"

	"ipoibd/hca"
)

// A QP gets more messages than its owner polls, 64 every 4 ms, as with a container whose
// host stack is slow. It does not delay the messages for another QP.
func TestQPWithASlowOwnerHoldsUpNoOther(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		slow := *r
		slow.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: 2 * rigDepth}))(t)
		slow.qp = have(r.pd.CreateQP(r.qp.Spec(), r.send, slow.recv))(t)
		slow.up()
		slow.postRecv(rigDepth)
		r.postRecv(rigDepth)
		const (
			milliseconds = 1000
			forSlow      = 100 // messages per millisecond
			forOther     = 10
			batch        = 64
		)
		wc := make([]hca.WC, rigDepth)
		toSlow, toOther := slow.message(nil), r.message(nil)
		got, late, taken := 0, 0, 0
		for ms := range milliseconds {
			for range forOther {
				for range forSlow / forOther {
					r.port.Inject(toSlow)
				}
				r.port.Inject(toOther)
			}
			time.Sleep(time.Millisecond)
			n := have(r.recv.Poll(wc))(t)
			r.postRecv(n)
			got += n
			if ms%4 == 3 {
				n := have(slow.recv.Poll(wc[:batch]))(t)
				slow.postRecv(n)
				taken += n
			}
		}
		sent := milliseconds * forOther
		late = sent - got
		if late > sent/100 {
			t.Errorf("after %d ms %d of %d messages for the other QP have not arrived; the slow QP's owner polled %d", milliseconds, late, sent, taken)
		}
		time.Sleep(10 * time.Minute) // until the queue is empty
		if err := slow.qp.Close(); err != nil {
			t.Error(err)
		}
		if err := slow.recv.Close(); err != nil {
			t.Error(err)
		}
	})
}
