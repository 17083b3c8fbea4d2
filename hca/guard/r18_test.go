package guard_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

var errBoom = errors.New("boom")

// Poll returns what the backend has completed, until the device fails; then it returns the
// Failure and nothing else, so that the poster completes its own requests.
func TestR18PollAfterTheFailure(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1, 2)
		r.inner.recv.put(done(hca.WCRecv, 1)...)
		r.wantWCs(r.recv, done(hca.WCRecv, 1))
		r.inner.recv.put(done(hca.WCRecv, 2)...) // not polled before the failure
		r.dev.Fail(errBoom)
		for range 2 {
			n, err := r.recv.Poll(make([]hca.WC, 4))
			r.wantErr(err, hca.ErrIO, "poll")
			if n != 0 {
				r.Errorf("%d completions, want none", n)
			}
			r.wantErr(r.recv.Arm(), hca.ErrIO, "arm")
			r.wantErr(r.recv.Wait(time.Time{}), hca.ErrIO, "wait")
		}
	})
}

// A poll during which the device fails returns the completions that it has taken from the
// backend.
func TestR18PollUnderWay(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1, 2)
		r.inner.recv.put(done(hca.WCRecv, 1, 2)...)
		r.fake.fail("poll_cq", hca.ErrIO)
		wc := make([]hca.WC, 4)
		if n, err := r.recv.Poll(wc); n != 2 || err != nil {
			r.Errorf("%d completions, %v, want those taken from the backend", n, err)
		}
		_, err := r.recv.Poll(wc)
		r.wantErr(err, hca.ErrIO, "poll again")
	})
}

// A post during which the device fails returns how many requests the backend has accepted,
// because the poster must complete exactly those.
func TestR18PostUnderWay(t *testing.T) {
	for accepted := range 3 {
		bubble(t, guard.Options{}, func(r *rig) {
			r.inner.qp.takes = accepted
			release := r.fake.stick("post_send")
			type result struct {
				n   int
				err error
			}
			posted := make(chan result, 1)
			go func() {
				n, err := r.qp.PostSend([]hca.SendWR{{ID: 2, UD: hca.UDDest{AH: r.ah}}, {ID: 3, UD: hca.UDDest{AH: r.ah}}})
				posted <- result{n, err}
			}()
			synctest.Wait()
			r.dev.Fail(errBoom)
			release()
			if got := <-posted; got.n != accepted || accepted < 2 && !errors.Is(got.err, hca.ErrIO) {
				r.Errorf("posted %d: %v, want %d", got.n, got.err, accepted)
			}
		})
	}
}

// A failure wakes a blocked Wait, even if the backend reports nothing.
func TestR18WaitIsWoken(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1)
		woken := make(chan error, 2)
		for _, cq := range []hca.CQ{r.send, r.recv} {
			go func() { woken <- cq.Wait(time.Time{}) }()
		}
		synctest.Wait()
		r.dev.Fail(errBoom)
		r.wantErr(<-woken, nil, "wait")
		r.wantErr(<-woken, nil, "wait")
	})
}

// New posts, and verbs that allocate, modify or query, fail immediately: no time passes, and
// the backend, which would hang, is not called.
func TestR18NewWorkFailsAtOnce(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		for _, v := range []string{
			"query_port", "alloc_pd", "create_cq", "reg_mr", "create_ah", "create_qp", "modify_qp",
			"query_qp", "attach_mcast", "post_send", "post_recv",
		} {
			defer r.fake.stick(v)()
		}
		r.dev.Fail(errBoom)
		start := time.Now()
		for what, err := range r.newWork() {
			r.wantErr(err, hca.ErrIO, what)
		}
		if d := time.Since(start); d != 0 {
			r.Errorf("took %v, want no time", d)
		}
	})
}

// newWork returns the errors of everything that a failed device refuses.
func (r *rig) newWork() map[string]error {
	errs := map[string]error{}
	_, errs["query port"] = r.dev.QueryPort(1)
	_, errs["allocate PD"] = r.dev.AllocPD()
	_, errs["create CQ"] = r.dev.CreateCQ(hca.CQSpec{Entries: 1})
	_, errs["allocate MR"] = r.pd.AllocMR(1, 0)
	_, errs["create AH"] = r.pd.CreateAH(hca.AHSpec{})
	_, errs["create QP"] = r.pd.CreateQP(rigSpec, r.send, r.recv)
	_, errs["query QP"] = r.qp.Query()
	errs["modify QP"] = r.qp.Modify(hca.QPAttr{State: hca.QPErr}, hca.AttrState)
	errs["attach"] = r.qp.AttachMulticast(hca.MulticastGroup{})
	_, errs["post send"] = r.qp.PostSend([]hca.SendWR{{UD: hca.UDDest{AH: r.ah}}})
	_, errs["post receive"] = r.qp.PostRecv([]hca.RecvWR{{}})
	return errs
}

// Releasing succeeds and reaches the backend, children first.
func TestR18ReleasingSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, guard.Options{})
		r.dev.Fail(errBoom)
		r.wantErr(r.qp.DetachMulticast(hca.MulticastGroup{}), nil, "detach")
		r.close()
		r.wantReleased()
	})
}

// wantReleased checks that the backend has released everything, children first.
func (r *rig) wantReleased() {
	r.Helper()
	got := r.fake.released()
	at := func(name string) int { return slices.Index(got, name) }
	if len(got) != 7 || at("QP") > at("CQ") || at("device") != 6 || at("PD") < max(at("AH"), at("MR"), at("QP")) {
		r.Errorf("released %v, want all seven, children first", got)
	}
}

// Parents that are closed before their children are released in the backend after them.
func TestR18ReleasingInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, guard.Options{})
		r.dev.Fail(errBoom)
		all := r.all()
		slices.Reverse(all)
		for _, c := range all {
			r.wantErr(c.Close(), nil, "close")
		}
		synctest.Wait()
		r.wantReleased()
	})
}

// Releasing succeeds while the backend hangs, and reaches the backend when it returns.
func TestR18ReleasingDoesNotNeedTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, guard.Options{VerbTimeout: time.Second})
		release := r.fake.stick("destroy_qp")
		r.dev.Fail(errBoom)
		start := time.Now()
		r.close()
		if d := time.Since(start); d != time.Second { // Close of the device waits
			t.Errorf("took %v, want 1 s", d)
		}
		release()
		synctest.Wait()
		r.wantReleased()
	})
}

// DEVICE_FATAL fails the device, and so does any verb or post that returns ErrIO.
func TestR18WhatFailsTheDevice(t *testing.T) {
	for name, f := range map[string]func(*rig){
		"event": func(r *rig) {
			r.fake.events <- hca.AsyncEvent{Type: hca.EventDeviceFatal}
			_, _ = r.dev.NextEvent(context.Background())
		},
		"verb":    func(r *rig) { r.fake.fail("query_port", hca.ErrIO); _, _ = r.dev.QueryPort(1) },
		"post":    func(r *rig) { r.fake.fail("post_recv", hca.ErrIO); _, _ = r.qp.PostRecv(make([]hca.RecvWR, 1)) },
		"poll":    func(r *rig) { r.fake.fail("poll_cq", hca.ErrIO); _, _ = r.send.Poll(make([]hca.WC, 1)) },
		"release": func(r *rig) { r.fake.fail("destroy_ah", hca.ErrIO); r.wantErr(r.ah.Close(), nil, "close") },
		"owner":   func(r *rig) { r.dev.Fail(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, guard.Options{}, func(r *rig) {
				f(r)
				r.wantErr(r.dev.Err(), hca.ErrIO, "device")
			})
		})
	}
}

// Other errors do not fail the device.
func TestR18OtherErrorsFailNothing(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		for _, err := range []error{
			hca.ErrInvalid, hca.ErrQueueFull, hca.ErrNoMemory, hca.ErrBusy, hca.ErrTimeout, hca.ErrCQ, hca.ErrRange,
		} {
			r.fake.fail("create_ah", err)
			_, got := r.pd.CreateAH(hca.AHSpec{})
			r.wantErr(got, err, "create AH")
		}
		r.fake.fail("dealloc_pd", hca.ErrBusy)
		r.wantErr(r.pd.Close(), hca.ErrBusy, "close PD")
		r.fake.fail("dealloc_pd", nil)
		if err := r.dev.Err(); err != nil {
			r.Error(err)
		}
	})
}
