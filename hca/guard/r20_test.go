package guard_test

import (
	"context"
	"errors"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// A completion from before a reset does not affect later requests.
func TestR20CompletionOfBeforeTheReset(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1, 2)
		if err := r.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState); err != nil {
			r.Fatal(err)
		}
		r.postRecv(3)
		r.inner.recv.put(done(hca.WCRecv, success, 1)...)
		r.inner.recv.put(done(hca.WCRecv, flushed, 2)...)
		r.inner.recv.put(done(hca.WCRecv, success, 3)...)
		r.wantWCs(r.recv, done(hca.WCRecv, success, 3))
		r.wantCounts(map[string]uint64{"guard_stale_completions": 2})
	})
}

// Poll polls again if all completions were stale, because 0 means that the CQ is empty.
func TestR20StaleCompletionsDoNotHideOthers(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(9)
		r.inner.recv.put(done(hca.WCRecv, success, 1, 2, 3, 9)...)
		wc := make([]hca.WC, 2)
		if n, err := r.recv.Poll(wc); n != 1 || err != nil || wc[0].ID != 9 {
			r.Errorf("%d completions, %v: %+v, want only completion 9", n, err, wc[:n])
		}
	})
}

// A completion is delivered once, and only if it belongs to a queue of this CQ.
func TestR20CompletionOfNothing(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1)
		r.postSend(0, 2)
		foreign := done(hca.WCRecv, success, 1)
		foreign[0].QPN++
		r.inner.recv.put(foreign...)
		r.inner.recv.put(done(hca.WCSend, success, 1)...) // no send completes here
		r.inner.recv.put(done(hca.WCRecv, success, 1, 1)...)
		r.inner.send.put(done(hca.WCSend, success, 2)...) // the request is unsignaled
		r.wantWCs(r.recv, done(hca.WCRecv, success, 1))
		r.wantWCs(r.send, nil)
		r.wantCounts(map[string]uint64{"guard_stale_completions": 4})
	})
}

// The backend gives a recreated QP its predecessor's number and ID.
func TestR20CompletionOfThePredecessor(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1)
		old := r.qp.ID()
		if err := r.qp.Close(); err != nil {
			r.Fatal(err)
		}
		r.qp = have(r.pd.CreateQP(rigSpec, r.send, r.recv))(r)
		if r.qp.ID() == old || r.qp.ID().Num != old.Num {
			r.Errorf("ID %+v after %+v, want a new ID with the same number", r.qp.ID(), old)
		}
		r.postRecv(2)
		r.inner.recv.put(done(hca.WCRecv, success, 1, 2)...)
		r.wantWCs(r.recv, done(hca.WCRecv, success, 2))
	})
}

// Events have the guard's object IDs; an event about an object that no longer exists is
// dropped.
func TestR20Events(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		qp := r.inner.qp.ID()
		gone := qp
		gone.Generation++
		for _, on := range []hca.ObjectID{gone, qp, {Kind: hca.KindPort, Num: 1}} {
			r.fake.events <- hca.AsyncEvent{Type: hca.EventQPFatal, On: on}
		}
		r.wantEventOn(r.qp.ID())
		r.wantEventOn(hca.ObjectID{Kind: hca.KindPort, Num: 1})
		r.wantErr(r.qp.Close(), nil, "close QP")
		r.fake.events <- hca.AsyncEvent{Type: hca.EventQPFatal, On: qp}
		ctx, cancel := context.WithTimeout(context.Background(), 1)
		defer cancel()
		_, err := r.dev.NextEvent(ctx)
		r.wantErr(err, context.DeadlineExceeded, "next event")
		r.wantCounts(map[string]uint64{"guard_stale_events": 2})
	})
}

func (r *rig) wantEventOn(want hca.ObjectID) {
	r.Helper()
	if ev, err := r.dev.NextEvent(context.Background()); err != nil || ev.On != want {
		r.Errorf("event %+v, %v, want on %+v", ev, err, want)
	}
}

// Objects of one instance of a device cannot be used with another instance.
func TestR20R28InstancesDoNotMix(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		old := newRig(r.TB, guard.Options{})
		defer old.close()
		old.dev.Fail(errBoom)
		if old.qp.ID() == r.qp.ID() || old.send.ID() == r.send.ID() {
			r.Error("two instances share an ID")
		}
		_, err := r.pd.CreateQP(rigSpec, old.send, r.recv)
		r.wantErr(err, hca.ErrInvalid, "create QP on an old CQ")
		_, err = r.pd.CreateQP(rigSpec, r.send, old.recv)
		r.wantErr(err, hca.ErrInvalid, "create QP on an old CQ")
		ok, stale := hca.SendWR{ID: 1, UD: hca.UDDest{AH: r.ah}}, hca.SendWR{ID: 2, UD: hca.UDDest{AH: old.ah}}
		n, err := r.qp.PostSend([]hca.SendWR{ok, stale, ok})
		if n != 1 || !errors.Is(err, hca.ErrInvalid) {
			r.Errorf("posted %d: %v, want 1 and %v", n, err, hca.ErrInvalid)
		}
		if err := r.dev.Err(); err != nil {
			r.Errorf("the new device: %v", err)
		}
	})
}
