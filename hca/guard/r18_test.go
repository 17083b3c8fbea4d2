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

const (
	flushed = hca.WCWRFlushErr
	success = hca.WCSuccess
)

// Requests that are posted and not completed are flushed once, in order.
func TestR18PendingRequestsAreFlushedOnce(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(10, 11, 12, 13)
		r.postSend(hca.SendSignaled, 1, 2)
		r.postSend(0, 3, 4)
		r.inner.recv.put(done(hca.WCRecv, success, 10)...)
		r.inner.send.put(done(hca.WCSend, success, 1)...)
		r.wantWCs(r.recv, done(hca.WCRecv, success, 10))
		r.wantWCs(r.send, done(hca.WCSend, success, 1))
		r.inner.send.put(done(hca.WCSend, success, 2)...) // not polled before the failure

		r.dev.Fail(errBoom)
		r.wantWCs(r.recv, done(hca.WCRecv, flushed, 11, 12, 13))
		r.wantWCs(r.send, done(hca.WCSend, flushed, 2, 3, 4))
		for _, cq := range []hca.CQ{r.recv, r.send} {
			n, err := cq.Poll(make([]hca.WC, 4))
			r.wantErr(err, hca.ErrIO, "poll again")
			if n != 0 {
				r.Errorf("%d more completions, want none", n)
			}
		}
		r.wantCounts(map[string]uint64{"guard_flushed": 6, "guard_stale_completions": 0})
	})
}

// A flush can be polled in parts; Arm and Wait return nil until all parts are polled.
func TestR18FlushInParts(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(1, 2, 3)
		r.dev.Fail(errBoom)
		wc := make([]hca.WC, 2)
		for _, want := range [][]hca.WC{done(hca.WCRecv, flushed, 1, 2), done(hca.WCRecv, flushed, 3)} {
			r.wantErr(r.recv.Arm(), nil, "arm")
			r.wantErr(r.recv.Wait(time.Time{}), nil, "wait")
			if n, err := r.recv.Poll(wc); err != nil || !slices.Equal(wc[:n], want) {
				r.Errorf("%+v, %v, want %+v", wc[:n], err, want)
			}
		}
		r.wantErr(r.recv.Arm(), hca.ErrIO, "arm")
		r.wantErr(r.recv.Wait(time.Time{}), hca.ErrIO, "wait")
	})
}

// A request whose completion is missing is flushed.
func TestR18SwallowedRequestIsFlushed(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postSend(hca.SendSignaled, 1, 2, 3)
		r.inner.send.put(done(hca.WCSend, success, 1, 3)...)
		r.wantWCs(r.send, done(hca.WCSend, success, 1, 3))
		r.dev.Fail(errBoom)
		r.wantWCs(r.send, done(hca.WCSend, flushed, 2))
	})
}

// A request whose completion is missing occupies only its own place in the queue.
func TestR18SwallowedRequestStopsNothing(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postRecv(0)
		for id := uint64(1); id < 20*rigDepth; id += rigDepth - 1 {
			var ids []uint64
			for i := range uint64(rigDepth - 1) {
				ids = append(ids, id+i)
			}
			r.postRecv(ids...)
			n, err := r.qp.PostRecv(make([]hca.RecvWR, 1))
			r.wantErr(err, hca.ErrQueueFull, "post to a full queue")
			if n != 0 {
				r.Errorf("posted %d, want 0", n)
			}
			r.inner.recv.put(done(hca.WCRecv, success, ids...)...)
			r.wantWCs(r.recv, done(hca.WCRecv, success, ids...))
		}
		r.dev.Fail(errBoom)
		r.wantWCs(r.recv, done(hca.WCRecv, flushed, 0))
	})
}

// An unsignaled send counts as completed when a later send completes.
func TestR18UnsignaledSendsAreNotFlushedTwice(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postSend(0, 1, 2)
		r.postSend(hca.SendSignaled, 3)
		r.postSend(0, 4)
		r.inner.send.put(done(hca.WCSend, success, 3)...)
		r.wantWCs(r.send, done(hca.WCSend, success, 3))
		r.dev.Fail(errBoom)
		r.wantWCs(r.send, done(hca.WCSend, flushed, 4))
	})
}

// Requests that a reset dropped are not flushed.
func TestR18ResetRequestsAreNotFlushed(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.postSend(hca.SendSignaled, 1)
		r.postRecv(2)
		if err := r.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState); err != nil {
			r.Fatal(err)
		}
		r.postRecv(3)
		r.dev.Fail(errBoom)
		r.wantWCs(r.recv, done(hca.WCRecv, flushed, 3))
		_, err := r.send.Poll(make([]hca.WC, 1))
		r.wantErr(err, hca.ErrIO, "poll")
	})
}

// Requests that the backend refused are not flushed.
func TestR18RefusedRequestsAreNotFlushed(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.inner.qp.takes = 2
		n, err := r.qp.PostRecv([]hca.RecvWR{{ID: 1}, {ID: 2}, {ID: 3}})
		if n != 2 || !errors.Is(err, hca.ErrInvalid) {
			r.Errorf("posted %d: %v, want 2 and %v", n, err, hca.ErrInvalid)
		}
		r.dev.Fail(errBoom)
		r.wantWCs(r.recv, done(hca.WCRecv, flushed, 1, 2))
	})
}

// A post during which the device fails reports only the completed requests as accepted.
func TestR18PostUnderWay(t *testing.T) {
	for _, completed := range []uint64{0, 1, 2} {
		bubble(t, guard.Options{}, func(r *rig) {
			r.postRecv(1)
			release := r.fake.stick("post_recv")
			type result struct {
				n   int
				err error
			}
			posted := make(chan result, 1)
			go func() {
				n, err := r.qp.PostRecv([]hca.RecvWR{{ID: 2}, {ID: 3}})
				posted <- result{n, err}
			}()
			synctest.Wait()
			early := []uint64{1, 2, 3}[:completed+1]
			r.inner.recv.put(done(hca.WCRecv, success, early...)...)
			r.wantWCs(r.recv, done(hca.WCRecv, success, early...))
			r.dev.Fail(errBoom)
			_, err := r.recv.Poll(make([]hca.WC, 4))
			r.wantErr(err, hca.ErrIO, "poll")
			release()
			if got := <-posted; got.n != int(completed) || !errors.Is(got.err, hca.ErrIO) {
				r.Errorf("posted %d: %v, want %d", got.n, got.err, completed)
			}
			_, err = r.recv.Poll(make([]hca.WC, 4))
			r.wantErr(err, hca.ErrIO, "poll again")
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
