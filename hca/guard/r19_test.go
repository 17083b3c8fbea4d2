package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// Every call returns the same error each time, and the error contains the cause.
func TestR19EveryCallAnswersTheSame(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.dev.Fail(errBoom)
		r.dev.Fail(errors.New("a later cause"))
		for range 2 {
			errs := r.newWork()
			_, errs["poll"] = r.send.Poll(make([]hca.WC, 1))
			_, errs["poll for nothing"] = r.send.Poll(nil)
			errs["arm"], errs["wait"] = r.send.Arm(), r.send.Wait(time.Time{})
			for what, err := range errs {
				var f *guard.Failure
				if !errors.As(err, &f) || !errors.Is(f.Cause, errBoom) || !errors.Is(err, hca.ErrIO) || errors.Is(err, errBoom) {
					t.Errorf("%s: %v, want one that wraps ErrIO and names the cause", what, err)
				}
			}
		}
	})
}

// Methods that need no hardware still work.
func TestR19ZombieKnowsItself(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		r.dev.Fail(errBoom)
		if r.dev.Attr().Name != "fake" || r.qp.Num() != fakeQPN || r.qp.Spec() != rigSpec || len(r.mr.Bytes()) != 64 {
			t.Error("attributes are gone")
		}
		if r.ah.Spec().Port != 1 || r.mr.SGE(0, 3).Length != 3 || r.send.ID() == r.recv.ID() {
			t.Error("specs are gone")
		}
		r.send.Wake()
	})
}

// Close is idempotent in the healthy state, in the failed state, and across the failure.
func TestR19DoubleClose(t *testing.T) {
	for _, failBefore := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, guard.Options{})
			for i := range 3 {
				if i == failBefore {
					r.dev.Fail(errBoom)
				}
				r.close()
			}
			synctest.Wait()
			r.wantReleased()
		})
	}
}

// The caller of a verb that hangs returns after the timeout; a single such verb does not
// fail the device.
func TestR19StuckVerbIsBounded(t *testing.T) {
	bubble(t, guard.Options{VerbTimeout: 2 * time.Second, AHTimeout: 9 * time.Second, HostTimeout: 7 * time.Second}, func(r *rig) {
		for verb, c := range map[string]struct {
			call  func() error
			bound time.Duration
		}{
			"alloc_pd":  {func() error { _, err := r.dev.AllocPD(); return err }, 2 * time.Second},
			"create_ah": {func() error { _, err := r.pd.CreateAH(hca.AHSpec{}); return err }, 9 * time.Second},
			"reg_mr":    {func() error { _, err := r.pd.AllocMR(64, 0); return err }, 7 * time.Second},
			"modify_qp": {func() error { return r.qp.Modify(hca.QPAttr{}, 0) }, 2 * time.Second},
		} {
			release := r.fake.stick(verb)
			start := time.Now()
			err := c.call()
			if d := time.Since(start); d != c.bound || !errors.Is(err, hca.ErrStuck) || errors.Is(err, hca.ErrTimeout) {
				r.Errorf("%s: %v after %v, want ErrStuck after %v", verb, err, d, c.bound)
			}
			r.wantCounts(map[string]uint64{"guard_verbs_stuck": 1})
			release()
			synctest.Wait()
			r.wantCounts(map[string]uint64{"guard_verbs_stuck": 0})
		}
		r.wantCounts(map[string]uint64{"guard_verbs_abandoned": 4, "guard_late_answers": 4})
		if err := r.dev.Err(); err != nil || !r.dev.Hung() {
			r.Errorf("failed: %v, a call hung: %t", err, r.dev.Hung())
		}
	})
}

// A verb that waits for the rtnl lock of the host is stuck in the device only if another verb hangs as
// well, or after much longer (R07).
func TestR07R19VerbBehindALockOfTheHost(t *testing.T) {
	for _, c := range []struct {
		name        string
		held        time.Duration // how long the verb hangs
		deviceHangs bool
		took        time.Duration
		want        error
	}{
		{"lock is held", 40 * time.Second, false, 40 * time.Second, nil},
		{"for ever", time.Hour, false, guard.DefaultHostStuck, hca.ErrStuck},
		{"device hangs", time.Hour, true, guard.DefaultHostTimeout + guard.DefaultVerbTimeout, hca.ErrStuck},
	} {
		for verb, call := range map[string]func(*rig) error{
			"query_port":   func(r *rig) error { _, err := r.dev.QueryPort(1); return err },
			"attach_mcast": func(r *rig) error { return r.qp.AttachMulticast(hca.MulticastGroup{}) },
		} {
			bubble(t, guard.Options{}, func(r *rig) {
				release := r.fake.stick(verb)
				time.AfterFunc(c.held, release)
				if c.deviceHangs {
					defer r.fake.stick("alloc_pd")()
				}
				start := time.Now()
				err := call(r)
				if took := time.Since(start); took != c.took || !errors.Is(err, c.want) {
					r.Errorf("%s, %s: %v after %v, want %v after %v", verb, c.name, err, took, c.want, c.took)
				}
				if err := r.dev.Err(); err != nil {
					r.Errorf("%s, %s: %v", verb, c.name, err)
				}
				time.Sleep(2 * time.Hour)
			})
		}
	}
}

// When the device fails, the callers of all stuck verbs return immediately.
func TestR19FailReleasesTheStuck(t *testing.T) {
	bubble(t, guard.Options{VerbTimeout: time.Hour}, func(r *rig) {
		var releases []func()
		errs := make(chan error, 3)
		for verb, call := range map[string]func() error{
			"query_qp":   func() error { _, err := r.qp.Query(); return err },
			"create_cq":  func() error { _, err := r.dev.CreateCQ(hca.CQSpec{Entries: 1}); return err },
			"destroy_ah": func() error { return r.ah.Close() },
		} {
			releases = append(releases, r.fake.stick(verb))
			go func() { errs <- call() }()
		}
		synctest.Wait()
		start, released := time.Now(), 0
		r.dev.Fail(errBoom)
		for range 3 {
			if err := <-errs; err == nil {
				released++ // a release succeeds
			} else {
				r.wantErr(err, hca.ErrIO, "verb")
			}
		}
		if d := time.Since(start); d != 0 || released != 1 {
			r.Errorf("after %v, %d releases succeeded", d, released)
		}
		r.wantCounts(map[string]uint64{"guard_verbs_abandoned": 3, "guard_verbs_stuck": 3})
		for _, release := range releases {
			release()
		}
		synctest.Wait()
		r.wantCounts(map[string]uint64{"guard_late_answers": 3, "guard_verbs_stuck": 0})
	})
}

// An object that a stuck verb creates late is released before its parents, in the healthy
// and in the failed state.
func TestR19LateResultIsReleased(t *testing.T) {
	for _, fail := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, guard.Options{})
			release := r.fake.stick("create_qp")
			_, err := r.pd.CreateQP(rigSpec, r.send, r.recv)
			r.wantErr(err, hca.ErrStuck, "create QP")
			if fail {
				r.dev.Fail(errBoom)
				r.close()
				if got := r.fake.released(); len(got) != 3 { // AH, QP and MR: the verb holds PD and CQs
					t.Errorf("released %v, want only AH, QP and MR", got)
				}
			}
			release()
			synctest.Wait()
			if !fail {
				r.close()
			}
			got := r.fake.released()
			if n := len(got); n != 8 || got[n-1] != "device" {
				t.Errorf("released %v, want all eight, the device last", got)
			}
		})
	}
}

// An object whose release hangs in the healthy state counts as closed.
func TestR19StuckRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, guard.Options{})
		release := r.fake.stick("destroy_qp")
		r.wantErr(r.qp.Close(), hca.ErrStuck, "close QP")
		r.wantErr(r.qp.Close(), nil, "close QP again")
		r.dev.Fail(errBoom)
		r.close()
		release()
		synctest.Wait()
		r.wantReleased()
	})
}

// No more than MaxStuck verbs are in the backend; another verb that cannot start fails the
// device.
func TestR19StuckVerbsAreBounded(t *testing.T) {
	bubble(t, guard.Options{MaxStuck: 3}, func(r *rig) {
		release := r.fake.stick("query_qp")
		for i := range 4 {
			if r.dev.Err() != nil {
				r.Errorf("failed after %d verbs", i)
			}
			_, err := r.qp.Query()
			r.wantErr(err, hca.ErrIO, "query QP")
		}
		r.wantErr(r.dev.Err(), hca.ErrIO, "device")
		for range 100 {
			_, err := r.qp.Query()
			r.wantErr(err, hca.ErrIO, "query QP")
		}
		r.wantCounts(map[string]uint64{"guard_verbs_abandoned": 3, "guard_verbs_stuck": 3})
		release()
		synctest.Wait()
		r.wantCounts(map[string]uint64{"guard_verbs_stuck": 0})
	})
}

// Slow peers, however many, neither fail the device nor delay its other verbs.
func TestR07SlowPeersLeaveTheDeviceAlone(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		release := r.fake.stick("create_ah")
		var making sync.WaitGroup
		for range 10 * guard.DefaultMaxStuck {
			making.Go(func() {
				if _, err := r.pd.CreateAH(hca.AHSpec{}); !errors.Is(err, hca.ErrStuck) && !errors.Is(err, hca.ErrBusy) {
					r.Error(err)
				}
			})
		}
		synctest.Wait()
		before := time.Now()
		if _, err := r.qp.Query(); err != nil || time.Since(before) > 0 {
			r.Errorf("query: %v after %v, want success at once", err, time.Since(before))
		}
		making.Wait()
		release()
		synctest.Wait()
		if err := r.dev.Err(); err != nil || r.dev.Hung() {
			r.Errorf("failed: %v, a call hung: %t", err, r.dev.Hung())
		}
	})
}

// Address handles whose creation never returns keep new peers out only for AHStuck. Then
// they count as verbs that are stuck in the device, and MaxStuck of them fail it.
func TestR19StuckAHsLeaveRoomForNewPeers(t *testing.T) {
	const stuck = 3
	bubble(t, guard.Options{MaxStuck: stuck, AHStuck: time.Minute}, func(r *rig) {
		release := r.fake.stick("create_ah")
		for range stuck {
			go func() { _, _ = r.pd.CreateAH(hca.AHSpec{}) }()
		}
		synctest.Wait()
		r.fake.unstick("create_ah")
		create := func() error { // does not close the AH, because no place is left for that
			_, err := r.pd.CreateAH(hca.AHSpec{})
			return err
		}
		r.wantErr(create(), hca.ErrBusy, "create an AH while all places are taken")
		time.Sleep(time.Minute)
		synctest.Wait()
		r.wantErr(create(), nil, "create an AH after a minute")
		r.wantErr(r.dev.Err(), nil, "device")
		_, err := r.dev.AllocPD()
		r.wantErr(err, hca.ErrIO, "allocate a PD while MaxStuck verbs are stuck")
		release()
		synctest.Wait()
		r.wantCounts(map[string]uint64{"guard_verbs_stuck": 0})
	})
	bubble(t, guard.Options{MaxStuck: stuck + 1, AHStuck: time.Minute}, func(r *rig) {
		release := r.fake.stick("create_ah")
		for range stuck + 1 {
			go func() { _, _ = r.pd.CreateAH(hca.AHSpec{}) }()
		}
		time.Sleep(30 * time.Second)
		r.fake.unstick("create_ah")
		if _, err := r.pd.CreateAH(hca.AHSpec{}); !errors.Is(err, hca.ErrBusy) {
			r.Errorf("create an AH after half a minute: %v, want hca.ErrBusy", err)
		}
		release()
		synctest.Wait()
		if _, err := r.pd.CreateAH(hca.AHSpec{}); err != nil {
			r.Errorf("create an AH after the others returned: %v", err)
		}
		_, err := r.dev.QueryPort(1)
		r.wantErr(err, nil, "query port")
	})
}

// Many verbs that wait for a lock of the host leave room for others, by which the device shows that it works.
// More of them wait for their turn (R07).
func TestR07ManyVerbsBehindALockOfTheHost(t *testing.T) {
	const many = 3 * guard.DefaultMaxStuck
	for _, held := range []time.Duration{2 * time.Second, 30 * time.Second} {
		bubble(t, guard.Options{}, func(r *rig) {
			release := r.fake.stick("attach_mcast")
			done := make(chan error, many)
			for range many {
				go func() { done <- r.qp.AttachMulticast(hca.MulticastGroup{}) }()
			}
			time.Sleep(held)
			pd, err := r.dev.AllocPD()
			r.wantErr(err, nil, "allocate a PD after "+held.String())
			if err == nil {
				r.wantErr(pd.Close(), nil, "deallocate it")
			}
			release()
			for range many {
				r.wantErr(<-done, nil, "attach to a group")
			}
			r.wantErr(r.dev.Err(), nil, "device")
		})
	}
}

// Instances that fail while a call hangs in the backend are counted over the lifetime of the
// process. Each one counts until the backend has released it and every call has returned.
func TestR19ZombiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var zombies guard.Zombies
		var releases []func()
		for i := range guard.MaxZombies {
			if err := zombies.Room(); err != nil {
				t.Fatalf("no room after %d zombies: %v", i, err)
			}
			r := newRig(t, guard.Options{Zombies: &zombies})
			switch i % 3 {
			case 0: // a verb hangs
				releases = append(releases, r.fake.stick("query_qp"))
				_, err := r.qp.Query()
				r.wantErr(err, hca.ErrStuck, "query QP")
			case 1: // a release hangs
				releases = append(releases, r.fake.stick("destroy_cq"))
			case 2: // the wait for events hangs
				r.fake.stuckEvents = true
				go func() { _, _ = r.dev.NextEvent(t.Context()) }()
				releases = append(releases, func() { r.fake.events <- hca.AsyncEvent{} })
			}
			synctest.Wait()
			r.dev.Fail(errBoom)
			r.close()
			r.dev.Fail(errBoom)
		}
		healthy := newRig(t, guard.Options{Zombies: &zombies}) // not counted
		if err := zombies.Room(); !errors.Is(err, hca.ErrBusy) {
			t.Errorf("room for one more: %v, want hca.ErrBusy", err)
		}
		for _, release := range releases {
			release()
			synctest.Wait()
			if err := zombies.Room(); err != nil {
				t.Error(err)
			}
		}
		healthy.close()
		synctest.Wait()
		healthy.dev.Fail(errBoom) // after its Close
		healthy.wantCounts(map[string]uint64{"guard_zombies": 0})
	})
}

// DEVICE_FATAL is delivered exactly once, no matter what failed the device, and is the last
// event.
func TestR19LastEvent(t *testing.T) {
	for name, f := range map[string]func(*rig){
		"owner":        func(r *rig) { r.dev.Fail(errBoom) },
		"backend":      func(r *rig) { r.fake.events <- hca.AsyncEvent{Type: hca.EventDeviceFatal} },
		"stuck events": func(r *rig) { r.dev.Fail(errBoom) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, guard.Options{}, func(r *rig) {
				ctx := context.Background()
				r.fake.stuckEvents = name == "stuck events"
				time.AfterFunc(time.Minute, func() { f(r) })
				start := time.Now()
				if ev, err := r.dev.NextEvent(ctx); err != nil || ev.Type != hca.EventDeviceFatal {
					r.Errorf("event %+v, %v, want DEVICE_FATAL", ev, err)
				}
				if d := time.Since(start); d != time.Minute {
					r.Errorf("DEVICE_FATAL after %v, want it after a minute", d)
				}
				_, err := r.dev.NextEvent(ctx)
				r.wantErr(err, hca.ErrIO, "next event")
				if r.fake.stuckEvents {
					r.fake.events <- hca.AsyncEvent{} // late; dropped
				}
				r.close()
				_, err = r.dev.NextEvent(ctx)
				r.wantErr(err, hca.ErrClosed, "next event")
			})
		})
	}
}

// A NextEvent of the backend that ignores its context is abandoned.
func TestR19StuckEvents(t *testing.T) {
	bubble(t, guard.Options{VerbTimeout: time.Second}, func(r *rig) {
		r.fake.stuckEvents = true
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := r.dev.NextEvent(ctx)
		if d := time.Since(start); d != time.Minute+time.Second || !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("NextEvent: %v after %v, want the context's error after a minute and a second", err, d)
		}
		r.fake.events <- hca.AsyncEvent{}
		synctest.Wait()
		r.wantCounts(map[string]uint64{"guard_verbs_stuck": 0, "guard_late_answers": 1})
	})
}

// A post that hangs and was given up may use any object and any memory. So the backend releases nothing
// before it has returned, and the device is a zombie until then.
func TestR19NothingIsReleasedWhileAPostHangs(t *testing.T) {
	bubble(t, guard.Options{}, func(r *rig) {
		first, second := r.dev.AbandonCall(), r.dev.AbandonCall()
		r.close()
		for _, returns := range []func(){func() {}, first} {
			returns()
			synctest.Wait()
			if closed := r.fake.released(); len(closed) != 0 {
				t.Errorf("released %v", closed)
			}
		}
		r.wantCounts(map[string]uint64{"guard_verbs_abandoned": 2, "guard_verbs_stuck": 1, "guard_late_answers": 1, "guard_zombies": 1})
		second()
		synctest.Wait()
		if closed := r.fake.released(); len(closed) != len(r.all()) {
			t.Errorf("released %v", closed)
		}
		r.wantCounts(map[string]uint64{"guard_verbs_stuck": 0, "guard_late_answers": 2, "guard_zombies": 0})
	})
}
