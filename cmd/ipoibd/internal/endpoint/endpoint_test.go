package endpoint

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/ud"
	"ipoibd/ud/port"
)

// addr1 is the underlay address of the device.
var addr1 = netip.MustParseAddr("10.0.0.1")

// session is an open device that delivers no events.
type session struct{ *guard.Device }

func (session) Watch(hca.ObjectID, func(hca.AsyncEvent)) (stop func()) { return func() {} }

func open(dev hca.Device) session { return session{guard.Wrap(dev, guard.Options{})} }

// testSpec returns the needs of an interface on a device.
func testSpec(t *testing.T, s Session) Spec {
	t.Helper()
	attr, err := s.QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := port.MakePlan(attr, port.Want{Port: 1, PKey: hca.PKeyDefault})
	if err != nil {
		t.Fatal(err)
	}
	return Spec{
		Plan: plan, SendWRs: 128, RecvWRs: 128,
		SendStride: ud.TxStride(plan.MTU(), 0), RecvStride: ud.RxStride(plan.PortMTU, true),
	}
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
	s := open(dev)
	spec := testSpec(t, s)
	for _, slots := range []int{128, 3000} {
		spec.SendWRs, spec.RecvWRs, dev.entries = slots, 256, nil
		e, err := Open(s, spec, 1)
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
	s := open(dev)
	good := testSpec(t, s)
	for name, spoil := range map[string]func(*Spec){
		"send depth":  func(s *Spec) { s.SendWRs = 1 << 30; s.SendStride = 1 },
		"P_Key index": func(s *Spec) { s.Plan.PKeyIndex = 99 },
		"group": func(s *Spec) {
			g := s.Plan.Broadcast()
			g.Attach = hca.GIDFromAddr(addr1)
			s.Plan.Groups = []port.Group{g}
		},
		"GID index": func(s *Spec) { s.Plan.GIDIndex = 99 },
	} {
		spec := good
		spoil(&spec)
		if e, err := Open(s, spec, 1); err == nil {
			t.Errorf("%s: no error", name)
			_ = e.Close()
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("close device: %v", err)
	}
	if _, err := Open(s, good, 1); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("on a closed device: %v", err)
	}
}
