package device

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
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
		e, err := OpenEndpoint(v.Session, testSpec(v), 1)
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

func testSpec(v View) EndpointSpec {
	plan, err := port.MakePlan(v.Ports[0], port.Want{Port: 1, PKey: hca.PKeyDefault})
	if err != nil {
		panic(err)
	}
	return EndpointSpec{
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
			e, err := OpenEndpoint(v.Session, spec, 1)
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
			if !e.AHs.Create(7, e.Spec.Plan.PeerAH(hca.GIDFromAddr(netip.MustParseAddr("10.0.0.2")))) {
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

// entryPerSegment is a device that needs an entry of the send queue for each segment.
type entryPerSegment struct {
	hca.Device
	entries []int // of the CQs, in the order of their creation
}

func (d *entryPerSegment) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.TSOEntries = true
	return a
}

func (d *entryPerSegment) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	d.entries = append(d.entries, spec.Entries)
	return d.Device.CreateCQ(spec)
}

// The longest large send fits the send queue and its CQ, on a device that needs an entry for each
// segment, although there are fewer send slots.
func TestEndpointHasRoomForAllSegments(t *testing.T) {
	fabric := memfabric.New(1)
	defer fabric.Close()
	soft, err := soft.Open(soft.Config{Name: "soft", Transport: fabric.Attach("eth0", 1500, addr1)})
	if err != nil {
		t.Fatal(err)
	}
	dev := &entryPerSegment{Device: soft}
	s := newSession(guard.Wrap(dev, guard.Options{}), 1)
	ports, err := queryPorts(s)
	if err != nil {
		t.Fatal(err)
	}
	spec := testSpec(View{Session: s, Ports: ports})
	for _, slots := range []int{128, 3000} {
		spec.SendWRs, spec.RecvWRs, dev.entries = slots, 256, nil
		e, err := OpenEndpoint(s, spec, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := e.QP.Spec().SendWRs, max(slots, hca.MaxLSOSegments); got != want || !slices.Equal(dev.entries, []int{want, 256}) {
			t.Errorf("%d slots: %d entries, CQs of %d; want %d, CQs of [%d 256]", slots, got, dev.entries, want, want)
		}
		if got, want := len(e.Queues[0].SendMR.Bytes()), slots*spec.SendStride; got != want {
			t.Errorf("%d slots: %d bytes, want %d", slots, got, want)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("close the device: %v", err)
	}
}

// A failure at any step takes back the steps before it: the device closes
// without ErrBusy.
func TestEndpointFailureLeavesNothing(t *testing.T) {
	fabric := memfabric.New(1)
	defer fabric.Close()
	dev, err := soft.Open(soft.Config{Name: "soft", Transport: fabric.Attach("eth0", 1500, addr1)})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(guard.Wrap(dev, guard.Options{}), 1)
	ports, err := queryPorts(s)
	if err != nil {
		t.Fatal(err)
	}
	good := testSpec(View{Session: s, Ports: ports})
	for name, spoil := range map[string]func(*EndpointSpec){
		"send depth":  func(s *EndpointSpec) { s.SendWRs = 1 << 30; s.SendStride = 1 },
		"P_Key index": func(s *EndpointSpec) { s.Plan.PKeyIndex = 99 },
		"group": func(s *EndpointSpec) {
			g := s.Plan.Broadcast()
			g.Attach = hca.GIDFromAddr(addr1)
			s.Plan.Groups = []port.Group{g}
		},
		"GID index": func(s *EndpointSpec) { s.Plan.GIDIndex = 99 },
	} {
		spec := good
		spoil(&spec)
		if e, err := OpenEndpoint(s, spec, 1); err == nil {
			t.Errorf("%s: no error", name)
			_ = e.Close()
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("close device: %v", err)
	}
	if _, err := OpenEndpoint(s, good, 1); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("on a closed device: %v", err)
	}
}
