package faults_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
)

const (
	ok    = hca.WCSuccess
	prot  = hca.WCLocProtErr
	flush = hca.WCWRFlushErr
)

// A request for which a fault fires fails. Earlier requests succeed, later ones are flushed,
// and the QP is in the state that the kind requires.
func TestWorkRequestErrors(t *testing.T) {
	for _, c := range []struct {
		kind       faults.Kind
		state      hca.QPState
		send, recv []hca.WCStatus // of four messages to itself, with a fault at the second, and a fifth receive
	}{
		{faults.SendErrorSQE, hca.QPSQE, []hca.WCStatus{ok, prot, flush, flush}, []hca.WCStatus{ok}},
		{faults.SendFlushSQE, hca.QPSQE, []hca.WCStatus{ok, flush, flush, flush}, []hca.WCStatus{ok}},
		{faults.SendErrorErr, hca.QPErr, []hca.WCStatus{ok, prot, flush, flush}, []hca.WCStatus{ok, flush, flush, flush, flush}},
		{faults.SendFlushErr, hca.QPErr, []hca.WCStatus{ok, flush, flush, flush}, []hca.WCStatus{ok, flush, flush, flush, flush}},
		{faults.RecvErrorErr, hca.QPErr, []hca.WCStatus{ok, ok, ok, ok}, []hca.WCStatus{ok, prot, flush, flush, flush}},
		{faults.RecvBadKey, hca.QPErr, []hca.WCStatus{ok, ok, ok, ok}, []hca.WCStatus{ok, prot, flush, flush, flush}},
		{faults.RecvFlushErr, hca.QPErr, []hca.WCStatus{ok, ok, ok, ok}, []hca.WCStatus{ok, flush, flush, flush, flush}},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.inject(faults.Fault{Kind: c.kind, After: 1})
				r.postRecv(5)
				r.postSend(4)
				r.wantStatuses(r.send, 0, c.send)
				r.wantStatuses(r.recv, 100, c.recv)
				if got := r.state(); got != c.state {
					r.Errorf("state %v, want %v", got, c.state)
				}
				r.wantHealthy()
			})
		})
	}
}

// wantStatuses polls until the CQ is empty and compares the completions with the statuses
// of consecutive IDs.
func (r *rig) wantStatuses(cq hca.CQ, first uint64, want []hca.WCStatus) {
	r.Helper()
	var got []outcome
	for more := r.poll(cq); len(more) > 0; more = r.poll(cq) {
		got = append(got, more...)
	}
	var wanted []outcome
	for i, s := range want {
		wanted = append(wanted, outcome{first + uint64(i), s})
	}
	if !slices.Equal(got, wanted) {
		r.Errorf("completions %v, want %v", got, wanted)
	}
}

// wantHealthy checks that the QP works after a reset, and that no fault is pending.
func (r *rig) wantHealthy() {
	r.Helper()
	r.reset()
	r.postRecv(2)
	r.postSend(2)
	r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok})
	r.wantStatuses(r.recv, 100, []hca.WCStatus{ok, ok})
	if p := r.dev.Planned(); len(p) > 0 {
		r.Errorf("pending: %+v, want no pending fault", p)
	}
}

// After a send error, a Modify from SQE to RTS suffices.
func TestR02SQEIsResumed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.SendErrorSQE})
		r.postSend(1)
		r.wantStatuses(r.send, 0, []hca.WCStatus{prot})
		if err := r.modify(hca.QPSQE, hca.QPRTS); err != nil {
			r.Fatal(err)
		}
		r.postRecv(1)
		r.postSend(1)
		r.wantStatuses(r.recv, 100, []hca.WCStatus{ok})
	})
}

func TestResetFails(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.ResetFails, After: 1, Count: 2})
		for i, want := range []error{nil, hca.ErrInvalid, hca.ErrInvalid, nil} {
			r.wantErr(r.modify(r.state(), hca.QPReset), want, "reset")
			if want != nil && r.state() != hca.QPReset {
				r.Errorf("reset %d: state %v, want RESET", i, r.state())
			}
		}
	})
}

func TestCreateQPFails(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.CreateQPFails})
		_, err := r.pd.CreateQP(r.qp.Spec(), r.send, r.recv)
		r.wantErr(err, hca.ErrNoMemory, "create QP")
		if err := have(r.pd.CreateQP(r.qp.Spec(), r.send, r.recv))(r).Close(); err != nil {
			r.Error(err)
		}
	})
}

func TestCQOverrun(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.CQOverrun, After: 1})
		r.postSend(2)
		wc := make([]hca.WC, 8)
		_, err := r.send.Poll(wc)
		r.wantErr(err, hca.ErrCQ, "poll")
		_, err = r.send.Poll(nil)
		r.wantErr(err, hca.ErrCQ, "poll for nothing")
		r.wantErr(r.send.Arm(), hca.ErrCQ, "arm")
		r.wantErr(r.send.Wait(time.Time{}), hca.ErrCQ, "wait")
		r.wantEvent(hca.EventCQErr, r.send.ID())
		if got := r.poll(r.recv); len(got) != 0 {
			r.Errorf("receive CQ: %v, want no completions", got)
		}
	})
}

// A small CQ overruns in the backend, even if it is polled.
func TestSmallCQOverruns(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.CQSmall})
		small := have(r.dev.CreateCQ(hca.CQSpec{Entries: 4 * rigDepth}))(t)
		spec := r.qp.Spec()
		if err := r.qp.Close(); err != nil {
			r.Fatal(err)
		}
		r.qp = have(r.pd.CreateQP(spec, small, r.recv))(t)
		r.up()
		r.postSend(1)
		if got := r.poll(small); len(got) != 0 {
			r.Errorf("polled %v, want no completions", got)
		}
		r.postSend(1)
		_, err := small.Poll(make([]hca.WC, 1))
		r.wantErr(err, hca.ErrCQ, "poll")
		r.wantEvent(hca.EventCQErr, small.ID())
		if err := errors.Join(r.qp.Close(), small.Close()); err != nil {
			r.Fatal(err)
		}
		r.qp = have(r.pd.CreateQP(spec, r.send, r.recv))(t)
		r.up()
		r.wantHealthy()
	})
}

// RecvBadKey does not fire for a receive that is not posted.
func TestBadKeyWaitsForAPost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.postRecv(rigDepth)
		r.inject(faults.Fault{Kind: faults.RecvBadKey})
		wr := hca.RecvWR{SGList: []hca.SGE{r.mr.SGE(0, rigSlot)}}
		_, err := r.qp.PostRecv([]hca.RecvWR{wr})
		r.wantErr(err, hca.ErrQueueFull, "post")
		if p := r.dev.Planned(); len(p) != 1 || r.counted("fault_recv_bad_key") != 0 {
			r.Errorf("pending: %+v, want the fault to be pending still", p)
		}
		r.reset()
		r.postRecv(1)
		r.postSend(1)
		r.wantStatuses(r.recv, 100, []hca.WCStatus{prot})
	})
}

func TestCQErrorEvent(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.CQError})
		r.postSend(2)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok})
		r.wantEvent(hca.EventCQErr, r.send.ID())
		r.wantNoEvent()
	})
}

func TestSwallowedSend(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.SwallowedSend, After: 1})
		r.postRecv(3)
		r.postSend(3)
		if got, want := r.poll(r.send), []outcome{{0, ok}, {2, ok}}; !slices.Equal(got, want) {
			r.Errorf("completions %v, want %v", got, want)
		}
		r.poll(r.recv)
		r.wantHealthy()
	})
}

// The CQ neither delivers completions nor wakes Wait, not even after a reset of the QP.
func TestCompletionsStop(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.CompletionsStop, After: 1})
		r.postSend(3)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok})
		r.wantErr(r.send.Arm(), nil, "arm")
		r.postSend(1)
		start := time.Now()
		r.wantErr(r.send.Wait(start.Add(time.Second)), nil, "wait")
		if waited := time.Since(start); waited != time.Second {
			r.Errorf("woken after %v, want 1 s", waited)
		}
		r.wantStatuses(r.send, 0, nil)
		r.reset()
		r.postSend(1)
		r.wantStatuses(r.send, 0, nil)
	})
}

// With DeafReceive a QP sends, but its receives do not complete until it is reset.
func TestDeafReceive(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.DeafReceive, After: 1})
		r.postRecv(5)
		r.postSend(3)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok, ok})
		r.wantStatuses(r.recv, 100, []hca.WCStatus{ok})
		r.postSend(1)
		r.wantStatuses(r.recv, 100, nil)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok})
		r.wantHealthy()
	})
}

func TestVerbHangs(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "query_qp"})
		if _, err := r.dev.QueryPort(1); err != nil {
			r.Error(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := r.qp.Query()
			done <- err
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-done:
			r.Errorf("the verb returned before the reset: %v", err)
		default:
		}
		r.dev.Release()
		r.wantErr(<-done, nil, "query QP")
		r.state()
	})
}

// A verb that hangs forever does not return after a reset. The rest of the fault can be
// injected into the next instance.
func TestVerbHangsForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		planned := []faults.Fault{{Kind: faults.VerbHangsForever, Verb: "query_port", Count: 2}}
		done := make(chan struct{}, 2)
		for i := range 2 {
			soft, _ := openSoft(t, memfabric.New(1), "eth0", rigAddr)
			dev := faults.Wrap(soft, faults.Options{Forever: forever})
			for _, f := range planned {
				if err := dev.Inject(f); err != nil {
					t.Fatal(err)
				}
			}
			go func() { _, _ = dev.QueryPort(1); done <- struct{}{} }()
			synctest.Wait()
			planned = dev.Planned()
			if len(planned) != 1-i {
				t.Errorf("instance %d: %d faults are left for the next one, want %d: %+v", i, len(planned), 1-i, planned)
			}
			dev.Release()
			synctest.Wait()
			if len(done) > 0 {
				t.Error("the verb returned")
			}
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
		close(forever)
		<-done
		<-done
	})
}

// A verb fails as often as ordered, with the error of the kind.
func TestVerbFails(t *testing.T) {
	for kind, want := range map[faults.Kind]error{faults.VerbEIO: hca.ErrIO, faults.VerbENOMEM: hca.ErrNoMemory} {
		bubble(t, func(r *rig) {
			r.inject(faults.Fault{Kind: kind, Verb: "query_port", Count: 2})
			for _, want := range []error{want, want, nil} {
				_, err := r.dev.QueryPort(1)
				r.wantErr(err, want, "query port")
			}
		})
	}
}

// An opening fails, or succeeds with the faults that were planned before.
func TestOpen(t *testing.T) {
	soft, _ := openSoft(t, memfabric.New(1), "eth0", rigAddr)
	open := func() (hca.Device, error) { return soft, nil }
	dev := faults.New(faults.Options{})
	for _, f := range []faults.Fault{{Kind: faults.VerbEIO, Verb: "open_device"}, {Kind: faults.VerbENOMEM, Verb: "query_port"}} {
		if err := dev.Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := dev.Open(open); !errors.Is(err, hca.ErrIO) {
		t.Errorf("first opening: %v", err)
	}
	if err := dev.Open(open); err != nil {
		t.Errorf("second opening: %v", err)
	}
	if _, err := dev.QueryPort(1); !errors.Is(err, hca.ErrNoMemory) {
		t.Errorf("query port: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// One event is lost, the next one is delivered.
func TestEventLost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.EventLost})
		r.inject(faults.Fault{Kind: faults.PortDown})
		r.inject(faults.Fault{Kind: faults.PortUp})
		if ev, err := r.dev.NextEvent(context.Background()); err != nil || ev.Type != hca.EventPortActive {
			t.Errorf("%v, %v, want the second event", ev, err)
		}
	})
}

// Every verb that may block can be made to hang, and so can posts and polls.
func TestEveryVerbHangs(t *testing.T) {
	bubble(t, func(r *rig) {
		group := hca.GIDFromAddr(rigAddr.Next())
		calls := map[string]func(){
			"open_device": func() {
				_ = r.dev.Open(func() (hca.Device, error) { r.Error("opened after it has hung"); return nil, nil })
			},
			"query_port":   func() { _, _ = r.dev.QueryPort(1) },
			"alloc_pd":     func() { _ = have(r.dev.AllocPD())(r).Close() },
			"dealloc_pd":   func() { _ = have(r.dev.AllocPD())(r).Close() },
			"create_cq":    func() { _ = have(r.dev.CreateCQ(hca.CQSpec{Entries: 1}))(r).Close() },
			"destroy_cq":   func() { _ = have(r.dev.CreateCQ(hca.CQSpec{Entries: 1}))(r).Close() },
			"reg_mr":       func() { _ = have(r.pd.AllocMR(1, 0))(r).Close() },
			"create_ah":    func() { _ = have(r.pd.CreateAH(r.ah.Spec()))(r).Close() },
			"create_qp":    func() { _ = have(r.pd.CreateQP(r.qp.Spec(), r.send, r.recv))(r).Close() },
			"destroy_qp":   func() { _ = have(r.pd.CreateQP(r.qp.Spec(), r.send, r.recv))(r).Close() },
			"modify_qp":    func() { _ = r.qp.Modify(hca.QPAttr{State: hca.QPRTS}, hca.AttrState) },
			"query_qp":     func() { _, _ = r.qp.Query() },
			"attach_mcast": func() { _ = r.qp.AttachMulticast(hca.MulticastGroup{MGID: group}) },
			"detach_mcast": func() { _ = r.qp.DetachMulticast(hca.MulticastGroup{MGID: group}) },
			"close_device": func() { _ = r.dev.Close() },
			"post_send":    func() { _, _ = r.qp.PostSend(nil) },
			"post_recv":    func() { _, _ = r.qp.PostRecv(nil) },
			"poll_cq":      func() { _, _ = r.send.Poll(nil) },
		}
		if len(calls) != len(faults.Verbs()) {
			r.Errorf("%d verbs can hang, want %d", len(faults.Verbs()), len(calls))
		}
		for verb, call := range calls {
			r.inject(faults.Fault{Kind: faults.VerbHangs, Verb: verb})
			done := make(chan struct{})
			go func() { call(); close(done) }()
			synctest.Wait()
			select {
			case <-done:
				r.Errorf("%s did not hang", verb)
			default:
				r.dev.Release()
				<-done
			}
		}
	})
}

func TestDeviceFatal(t *testing.T) {
	bubble(t, func(r *rig) {
		r.postSend(1)
		r.inject(faults.Fault{Kind: faults.DeviceFatal})
		r.wantEvent(hca.EventDeviceFatal, hca.ObjectID{Kind: hca.KindDevice})
		r.wantGone()
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok})
		if r.unplugged != 0 {
			r.Error("unplugged")
		}
	})
}

func TestR27Unplug(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.Unplug, After: 2})
		r.postSend(2)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok})
		r.wantNoEvent()
		if n, err := r.qp.PostSend(r.sends(1)); n != 0 || !errors.Is(err, hca.ErrIO) {
			r.Errorf("posted %d: %v, want 0 and %v", n, err, hca.ErrIO)
		}
		r.wantEvent(hca.EventDeviceFatal, hca.ObjectID{Kind: hca.KindDevice})
		r.wantGone()
		r.wantErr(r.send.Arm(), nil, "arm")
		if r.unplugged != 1 {
			r.Errorf("unplugged %d times, want once", r.unplugged)
		}
	})
}

// wantGone checks that an unplugged device refuses all posts, and all verbs except releases.
func (r *rig) wantGone() {
	r.Helper()
	_, err := r.qp.PostSend(r.sends(1))
	r.wantErr(err, hca.ErrIO, "post send")
	_, err = r.qp.PostRecv(make([]hca.RecvWR, 1))
	r.wantErr(err, hca.ErrIO, "post receive")
	_, err = r.dev.QueryPort(1)
	r.wantErr(err, hca.ErrIO, "query port")
	_, err = r.dev.AllocPD()
	r.wantErr(err, hca.ErrIO, "allocate PD")
	_, err = r.dev.CreateCQ(hca.CQSpec{Entries: 1})
	r.wantErr(err, hca.ErrIO, "create CQ")
	_, err = r.pd.AllocMR(1, 0)
	r.wantErr(err, hca.ErrIO, "allocate MR")
	_, err = r.pd.CreateAH(r.ah.Spec())
	r.wantErr(err, hca.ErrIO, "create AH")
	_, err = r.pd.CreateQP(r.qp.Spec(), r.send, r.recv)
	r.wantErr(err, hca.ErrIO, "create QP")
	_, err = r.qp.Query()
	r.wantErr(err, hca.ErrIO, "query QP")
	r.wantErr(r.modify(hca.QPRTS, hca.QPErr), hca.ErrIO, "modify QP")
	r.wantErr(r.qp.AttachMulticast(hca.MulticastGroup{MGID: hca.GID{0: 0xff}}), hca.ErrIO, "attach")
}

func TestPortFaults(t *testing.T) {
	bubble(t, func(r *rig) {
		before := have(r.dev.QueryPort(1))(r)
		port := hca.ObjectID{Kind: hca.KindPort, Num: 1}
		for _, c := range []struct {
			kind  faults.Kind
			event hca.EventType
			down  bool
			gid   bool
			pkey  bool
		}{
			{faults.PortDown, hca.EventPortErr, true, true, true},
			{faults.GIDChange, hca.EventGIDChange, true, false, true},
			{faults.PortUp, hca.EventPortActive, false, false, true},
			{faults.PKeyChange, hca.EventPKeyChange, false, false, false},
			{faults.GIDChange, hca.EventGIDChange, false, true, false},
			{faults.PKeyChange, hca.EventPKeyChange, false, true, true},
		} {
			r.inject(faults.Fault{Kind: c.kind})
			r.wantEvent(c.event, port)
			a := have(r.dev.QueryPort(1))(r)
			if down := a.State == hca.PortDown; down != c.down {
				r.Errorf("%v: port %v, want down %v", c.kind, a.State, c.down)
			}
			if (a.GIDs[0] == before.GIDs[0]) != c.gid || (a.PKeys[0] == before.PKeys[0]) != c.pkey {
				r.Errorf("%v: GID %v, P_Key %#x, want the GID kept %v and the P_Key kept %v", c.kind, a.GIDs[0].GID, a.PKeys[0], c.gid, c.pkey)
			}
			if a.PKeys[1] != before.PKeys[1] {
				r.Errorf("%v: second P_Key %#x, want it unchanged", c.kind, a.PKeys[1])
			}
		}
		r.wantNoEvent()
	})
}
