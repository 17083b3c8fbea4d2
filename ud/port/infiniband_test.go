package port

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// infiniBand returns an active port of InfiniBand, as a subnet manager has configured it.
func infiniBand() hca.PortAttr {
	gid := func(last byte) hca.GIDEntry {
		return hca.GIDEntry{GID: hca.GID{0xfe, 0x80, 15: last}, Type: hca.GIDTypeIB, MaxPayload: 2048}
	}
	return hca.PortAttr{
		State: hca.PortActive, MaxMTU: 4096, ActiveMTU: 2048, LinkLayer: hca.LinkLayerInfiniBand,
		LID: 8, LMC: 2, SMLID: 1, GIDs: []hca.GIDEntry{gid(1), gid(2)}, PKeys: []hca.PKey{0x7fff, 0xffff, 0x8001},
	}
}

// granted is the broadcast group of the default partition, as the subnet administrator granted it.
func granted() Group {
	mgid := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault)
	return Group{
		MGID: mgid, Attach: mgid, QKey: 0x1234, MTU: 2048,
		Path: hca.UDPath{DLID: 0xc001, SL: 3, Rate: 7, Traffic: 9, FlowLabel: 0x12345, HopLimit: 2},
	}
}

// The plan of an InfiniBand port is that of the group: the SA's values, and no constant of Ethernet, reach the queue
// pair and the handles.
func TestInfiniBandPlan(t *testing.T) {
	other := Group{MGID: hca.GID{0xff, 0x12, 15: 7}, Attach: hca.GID{0xff, 0x12, 15: 7}, QKey: 0x1234, Path: hca.UDPath{DLID: 0xc002}}
	p, err := MakePlan(infiniBand(), Want{Port: 2, PKey: 0xffff, Joined: []Group{granted(), other}})
	if err != nil {
		t.Fatal(err)
	}
	if !p.InfiniBand() || p.PKeyIndex != 1 || p.GIDIndex != 0 || p.LID != 8 || p.LMC != 2 || p.MaxPayload != 2048 || p.MTU() != 2044 ||
		!slices.Equal(p.Groups, []Group{granted(), other}) {
		t.Errorf("plan %+v", p)
	}
	g := p.Broadcast()
	if got, want := p.GroupAH(g), (hca.AHSpec{
		Port: 2, DLID: 0xc001, SL: 3, Rate: 7, Global: true, DGID: g.MGID, FlowLabel: 0x12345, HopLimit: 2, Traffic: 9,
	}); got != want {
		t.Errorf("handle of the group %+v, want %+v", got, want)
	}
	if got, want := p.Membership(g), (hca.MulticastGroup{MGID: g.MGID, MLID: 0xc001}); got != want {
		t.Errorf("membership %+v, want %+v", got, want)
	}
	if got, want := p.SelfAH(), (hca.AHSpec{Port: 2, DLID: 8, SL: 3}); got != want {
		t.Errorf("own handle %+v, want %+v", got, want)
	}
}

// A message within the subnet has no GRH, even if the path has a hop limit; one to another subnet has.
func TestPeerAHOnInfiniBand(t *testing.T) {
	p, err := MakePlan(infiniBand(), Want{Port: 1, PKey: 0xffff, Joined: []Group{granted()}})
	if err != nil {
		t.Fatal(err)
	}
	near, far := hca.GID{0xfe, 0x80, 15: 9}, hca.GID{0xfe, 0xc0, 15: 9}
	for _, c := range []struct {
		name string
		gid  hca.GID
		path hca.UDPath
		want hca.AHSpec
	}{
		{"near", near, hca.UDPath{DLID: 5, SL: 1, Rate: 3}, hca.AHSpec{Port: 1, DLID: 5, SL: 1, Rate: 3}},
		{"near, with a hop limit", near, hca.UDPath{DLID: 5, HopLimit: 64}, hca.AHSpec{Port: 1, DLID: 5}},
		{"far", far, hca.UDPath{DLID: 6, HopLimit: 64, FlowLabel: 7, Traffic: 2}, hca.AHSpec{
			Port: 1, DLID: 6, Global: true, DGID: far, FlowLabel: 7, HopLimit: 64, Traffic: 2,
		}},
	} {
		if got := p.PeerAH(c.gid, c.path); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Without the broadcast group there is no plan, and each reason has an error of its own. The broadcast group limits the
// MTU, also below that of the port.
func TestInfiniBandNeedsTheGroup(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*hca.PortAttr, *Want)
		err    error
		text   string
		mtu    int
	}{
		"joined":                     {func(*hca.PortAttr, *Want) {}, nil, "", 2044},
		"a group with a smaller MTU": {func(_ *hca.PortAttr, w *Want) { w.Joined[0].MTU = 1024 }, nil, "", 1020},
		"a group with a larger MTU":  {func(_ *hca.PortAttr, w *Want) { w.Joined[0].MTU = 4096 }, nil, "", 2044},
		"a group that is too small": {
			func(_ *hca.PortAttr, w *Want) { w.Joined[0].MTU = 512 }, ErrNoMTU,
			"carries 512 bytes of payload, but 580 are required", 0,
		},
		"not joined": {
			func(_ *hca.PortAttr, w *Want) { w.Joined = nil }, ErrNoGroup,
			"P_Key 0xffff: the port has not joined the broadcast group", 0,
		},
		"that of another partition": {func(_ *hca.PortAttr, w *Want) { w.PKey = 0x8001 }, ErrNoGroup, "P_Key 0x8001", 0},
		"a P_Key that the port lacks": {
			func(_ *hca.PortAttr, w *Want) { w.PKey = 0x8002 }, ErrNoPKey, "add the port to the partition at the subnet manager", 0,
		},
		"in INIT":           {func(a *hca.PortAttr, _ *Want) { a.State = hca.PortInit }, ErrNoSM, "port 1 is INIT: no subnet manager", 0},
		"without an SM LID": {func(a *hca.PortAttr, _ *Want) { a.SMLID = 0 }, ErrNoSM, "start one on the subnet", 0},
		"without a LID":     {func(a *hca.PortAttr, _ *Want) { a.LID = 0 }, ErrNoSM, "", 0},
		"down":              {func(a *hca.PortAttr, _ *Want) { a.State = hca.PortDown }, ErrDown, "port 1 is DOWN: port is not active", 0},
	} {
		attr, w := infiniBand(), Want{Port: 1, PKey: 0xffff, Joined: []Group{granted()}}
		c.change(&attr, &w)
		p, err := MakePlan(attr, w)
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.text) || err == nil && p.MTU() != c.mtu {
			t.Errorf("%s: MTU %d, %v; want %v, %q, MTU %d", name, p.MTU(), err, c.err, c.text, c.mtu)
		}
	}
}

// A queue pair is kept if the subnet manager changes LIDs, MLIDs, service levels or the Q_Key; a new GID or P_Key index
// needs another.
func TestSubnetManagerChangesAPlan(t *testing.T) {
	want := func() Want { return Want{Port: 1, PKey: 0xffff, Joined: []Group{granted()}} }
	p, err := MakePlan(infiniBand(), want())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*hca.PortAttr, *Want)
		same   bool
	}{
		"LID":         {func(a *hca.PortAttr, _ *Want) { a.LID = 12 }, true},
		"LMC":         {func(a *hca.PortAttr, _ *Want) { a.LMC = 0 }, true},
		"MLID":        {func(_ *hca.PortAttr, w *Want) { w.Joined[0].Path.DLID++ }, true},
		"SL":          {func(_ *hca.PortAttr, w *Want) { w.Joined[0].Path.SL++ }, true},
		"Q_Key":       {func(_ *hca.PortAttr, w *Want) { w.Joined[0].QKey++ }, true},
		"P_Key index": {func(a *hca.PortAttr, _ *Want) { slices.Reverse(a.PKeys[:2]) }, false},
		"prefix":      {func(a *hca.PortAttr, _ *Want) { a.GIDs[0].GID[1] = 0xc0 }, false},
	} {
		attr, w := infiniBand(), want()
		c.change(&attr, &w)
		q, err := MakePlan(attr, w)
		if err != nil || p.SameExceptGroups(q) != c.same || p.SameQP(q) || p.Equal(q) {
			t.Errorf("%s: %v, the queue pair can be kept: %t, want %t; same QP %t, equal %t",
				name, err, p.SameExceptGroups(q), c.same, p.SameQP(q), p.Equal(q))
		}
	}
}

// The GID of an InfiniBand port is the first, or the configured one; the order of RoCE does not apply.
func TestInfiniBandGID(t *testing.T) {
	one := 1
	for name, c := range map[string]struct {
		want  Want
		index int
		err   error
	}{
		"by default":   {Want{}, 0, nil},
		"in use":       {Want{InUse: hca.GID{0xfe, 0x80, 15: 2}}, 1, nil},
		"by index":     {Want{GIDIndex: &one}, 1, nil},
		"by address":   {Want{GID: netip.MustParseAddr("fe80::2")}, 1, nil},
		"one it lacks": {Want{GID: netip.MustParseAddr("fe80::3")}, 0, ErrNoGID},
	} {
		c.want.Port, c.want.PKey, c.want.Joined = 1, 0xffff, []Group{granted()}
		if p, err := MakePlan(infiniBand(), c.want); p.GIDIndex != c.index || !errors.Is(err, c.err) {
			t.Errorf("%s: index %d, %v; want %d, %v", name, p.GIDIndex, err, c.index, c.err)
		}
	}
}
