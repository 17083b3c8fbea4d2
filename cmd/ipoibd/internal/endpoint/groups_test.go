package endpoint

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// groupOf returns an IPoIB group that an underlay address carries.
func groupOf(mgid, attach string) port.Group {
	return port.Group{MGID: hca.GIDFromAddr(netip.MustParseAddr(mgid)), Attach: hca.GIDFromAddr(netip.MustParseAddr(attach)), QKey: port.QKey}
}

// wantGroups checks the destinations of messages to the groups, and how many groups the
// queue pair is attached to.
func wantGroups(t *testing.T, e *Endpoint, attached int, groups ...port.Group) {
	t.Helper()
	dests := e.Groups()
	if len(dests) != len(groups) || len(e.groupAHs) != len(groups) || len(e.attached.list) != attached {
		t.Errorf("%d destinations, %d handles, attached to %v; want %d groups", len(dests), len(e.groupAHs), e.attached.list, len(groups))
	}
	for _, g := range groups {
		if to := dests[g.MGID]; to.AH == nil || to.AH.Spec() != e.Spec.Plan.GroupAH(g) || to.QPN != hca.QPNMulticast || to.QKey != g.QKey {
			t.Errorf("group %s: %+v", g.MGID, to)
		}
	}
}

// The groups of a plan can change while the queue pair is in use. It is attached to each
// underlay address once, and keeps what does not change. A new queue pair is attached to the
// groups of the latest plan.
func TestEndpointFollowsTheGroupsOfThePlan(t *testing.T) {
	e, rec, _ := openRecorded(t)
	all, one, two := e.Spec.Plan.Broadcast(), groupOf("ff12:401b:ffff::fb", "239.1.2.3"), groupOf("ff12:401b:ffff::fc", "239.1.2.4")
	shared := groupOf("ff12:401b:ffff::1", all.Attach.Addr().String())
	qp, broadcast := e.QP, e.Groups()[all.MGID]
	wantGroups(t, e, 1, all)
	for _, c := range []struct {
		groups   []port.Group
		attached int
		closed   []string
	}{
		{[]port.Group{all, one, two}, 3, nil},
		{[]port.Group{all, two, shared}, 2, []string{"group"}},
		{[]port.Group{all, two}, 2, nil},
	} {
		rec.closed = nil
		p := e.Spec.Plan
		p.Groups = c.groups
		if err := e.Regroup(p); err != nil {
			t.Fatal(err)
		}
		wantGroups(t, e, c.attached, c.groups...)
		if e.QP != qp || e.Groups()[all.MGID] != broadcast || !slices.Equal(rec.closed, c.closed) {
			t.Errorf("groups %v: closed %v, want %v", c.groups, rec.closed, c.closed)
		}
	}
	rec.closed = nil
	if err := errors.Join(e.Stop(qprecovery.RungRecreateQP), e.Start(qprecovery.RungRecreateQP, 2)); err != nil {
		t.Fatal(err)
	}
	wantGroups(t, e, 2, all, two)
	if want := []string{"group", "group", "QP"}; !slices.Equal(rec.closed, want) {
		t.Errorf("a new queue pair: closed %v, want %v", rec.closed, want)
	}
}

// The endpoint does without a group that the device refuses, and tries again with the next plan. It cannot do without the
// broadcast group.
func TestEndpointDoesWithoutRefusedGroups(t *testing.T) {
	e, _, _ := openRecorded(t)
	var refused []error
	e.Spec.OnRefused = func(err error) { refused = append(refused, err) }
	all, good := e.Spec.Plan.Broadcast(), groupOf("ff12:401b:ffff::fb", "239.1.2.3")
	unicast := groupOf("ff12:401b:ffff::9", addr1.String())
	p := e.Spec.Plan
	for range 2 {
		refused = nil
		p.Groups = []port.Group{all, unicast, good}
		if err := e.Regroup(p); err != nil || len(refused) != 1 || !errors.Is(refused[0], hca.ErrInvalid) || e.Refused.Load() != 1 {
			t.Errorf("a group by a unicast address: %v, refused %v, %d", err, refused, e.Refused.Load())
		}
		wantGroups(t, e, 2, all, unicast, good)
	}
	p.Groups = []port.Group{all, good}
	if err := e.Regroup(p); err != nil || e.Refused.Load() != 0 {
		t.Errorf("without it: %v, %d refused", err, e.Refused.Load())
	}
	p.Groups = []port.Group{unicast, good}
	if err := e.Regroup(p); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("a broadcast group by a unicast address: %v", err)
	}
}

// A subnet manager may give the broadcast group another MLID and another Q_Key: the queue pair stays, and has the group
// only once.
func TestEndpointFollowsTheBroadcastGroup(t *testing.T) {
	e, rec, _ := openRecorded(t)
	qp, was, p := e.QP, e.Self(), e.Spec.Plan
	p.Groups = slices.Clone(p.Groups)
	p.Groups[0].Path.DLID, p.Groups[0].QKey = 0xc007, 0x77
	if err := e.Regroup(p); err != nil {
		t.Fatal(err)
	}
	wantGroups(t, e, 1, p.Groups...)
	if a, err := e.QP.Query(); err != nil || e.QP != qp || a.State != hca.QPRTS || a.QKey != 0x77 {
		t.Errorf("queue pair %+v, %v", a, err)
	}
	if to := e.Self(); to.QKey != 0x77 || to.AH != was.AH {
		t.Errorf("own address %+v, was %+v", to, was)
	}
	if want := []string{"group"}; !slices.Equal(rec.closed, want) || e.attached.list[0].MLID != 0xc007 {
		t.Errorf("closed %v, attached to %v", rec.closed, e.attached.list)
	}
}
