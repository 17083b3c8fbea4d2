package device

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/ud"
	"ipoibd/ud/port"
)

// An endpoint reports that it has failed, and closes without an error when its device is
// gone.
func TestEndpointHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t)
		defer b.stop()
		v := b.View()
		v.Session.Acquire("user")
		defer v.Session.Release("user")
		e, err := endpoint.Open(v.Session, testSpec(v), 1)
		if err != nil {
			t.Fatal(err)
		}
		if state, err := e.State(); err != nil || state != hca.QPRTS {
			t.Errorf("fresh: %v, %v", state, err)
		}
		if err := e.Fail(); err != nil {
			t.Fatal(err)
		}
		if state, err := e.State(); err != nil || state != hca.QPErr {
			t.Errorf("in ERR: %v, %v", state, err)
		}
		b.slot.unplug()
		synctest.Wait()
		if _, err := e.State(); !errors.Is(err, hca.ErrIO) {
			t.Errorf("device gone: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func testSpec(v View) endpoint.Spec {
	plan, err := port.MakePlan(v.Ports[0], port.Want{Port: 1, PKey: hca.PKeyDefault})
	if err != nil {
		panic(err)
	}
	return endpoint.Spec{
		Plan: plan, SendWRs: 128, RecvWRs: 128,
		SendStride: ud.TxStride(plan.MTU(), 0), RecvStride: ud.RxStride(plan.PortMTU, true),
	}
}

func TestEndpointOpensInRTSAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t)
		defer b.stop()
		v := b.View()
		for i := range 3 {
			spec := testSpec(v)
			spec.LROUDP = i == 1
			e, err := endpoint.Open(v.Session, spec, 1)
			if err != nil {
				t.Fatal(err)
			}
			if s := e.QP.Spec(); s.LRO != v.Session.Attr().LRO || s.LROUDP != spec.LROUDP {
				t.Errorf("the QP's large receives: %v, of UDP %v", s.LRO, s.LROUDP)
			}
			if s := e.QP.Spec(); s.BlockLoopback != v.Session.Attr().BlocksLoop {
				t.Errorf("the QP blocks its own multicast: %v", s.BlockLoopback)
			}
			if a, err := e.QP.Query(); err != nil || a.State != hca.QPRTS || a.QKey != port.QKey {
				t.Errorf("QP is %+v, %v", a, err)
			}
			if !e.AHs.Create(7, e.Spec.Plan.PeerAH(hca.GIDFromAddr(netip.MustParseAddr("10.0.0.2")), hca.UDPath{})) {
				t.Error("request for a handle refused")
			}
			if r := <-e.AHs.Results(); r.ID != 7 || r.Err != nil {
				t.Errorf("handle: %+v", r)
			}
			if err := e.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
}

// A verb that hangs while an endpoint is closed keeps other objects from being closed. Once
// the verb returns, nothing of the endpoint is left.
func TestR12CloseWithAVerbThatHangs(t *testing.T) {
	for _, verb := range []string{"modify_qp", "destroy_qp", "destroy_cq", "dealloc_pd"} {
		t.Run(verb, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				s := b.View().Session
				s.Acquire("user")
				e, err := endpoint.Open(s, testSpec(b.View()), 1)
				if err != nil {
					t.Fatal(err)
				}
				b.slot.inject(t, faults.Fault{Kind: faults.VerbHangs, Verb: verb})
				if err := e.Close(); err == nil {
					t.Error("closed")
				}
				s.Release("user")
				if err := b.Reset(b.t.Context()); err != nil {
					t.Fatal(err)
				}
				b.healthy(time.Second)
			})
		})
	}
}
