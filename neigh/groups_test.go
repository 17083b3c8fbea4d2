package neigh

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// groupsOf returns the destinations of groups, each with a handle of its own.
func groupsOf(mgids ...hca.GID) map[hca.GID]hca.UDDest {
	to := map[hca.GID]hca.UDDest{}
	for _, g := range mgids {
		to[g] = hca.UDDest{AH: &fakeAH{g.String()}, QPN: hca.QPNMulticast, QKey: 0x0b1b}
	}
	return to
}

func returned(actions []Action) (all []DestroyAH) {
	for _, a := range actions {
		if d, ok := a.(DestroyAH); ok {
			all = append(all, d)
		}
	}
	return all
}

func (b *bench) wantGroup(mgid hca.GID, want hca.UDDest) {
	b.tb.Helper()
	if to, ok := b.snap.Group(mgid); !ok || to != want {
		b.tb.Fatalf("group %s: %v, %t; want %v", mgid, to, ok, want)
	}
}

var (
	mdns     = ipoib.GroupMGID(2, 0xffff, ip("224.0.0.251"))
	allNodes = ipoib.GroupMGID(2, 0xffff, ip("ff02::1"))
	notThere = ipoib.GroupMGID(2, 0xffff, ip("224.0.0.9"))
)

// Each group to which the QP is attached has its own destination; messages to any other
// group go to the broadcast group.
func TestGroupsHaveTheirOwnDestinations(t *testing.T) {
	b := newBench(t, Config{})
	ev := attachedAt(selfEnd)
	ev.Groups = groupsOf(mdns, allNodes)
	want := map[hca.GID]hca.UDDest{mdns: ev.Groups[mdns], allNodes: ev.Groups[allNodes], notThere: broadcast}
	b.step(ev)
	clear(ev.Groups) // the caller's
	for mgid, to := range want {
		b.wantGroup(mgid, to)
	}
	if n := testing.AllocsPerRun(100, func() { b.snap.Group(mdns); b.snap.Group(notThere) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	b.step(Detached{})
	for mgid := range want {
		if to, ok := b.snap.Group(mgid); ok {
			t.Errorf("group %s after Detached: %v", mgid, to)
		}
	}
}

// While the QP stays attached, a group may come and go. The snapshot follows at once, an
// older one keeps the old group, and the handle is returned with the older one's epoch.
// Handles that are void with the QP are not returned.
func TestGroupsComeAndGo(t *testing.T) {
	b := newBench(t, Config{})
	ev := attachedAt(selfEnd)
	b.step(ev)
	ev.Groups = groupsOf(mdns)
	if all := returned(b.step(ev)); len(all) > 0 {
		t.Errorf("a group came: %v", all)
	}
	b.wantGroup(mdns, ev.Groups[mdns])
	both := groupsOf(allNodes)
	both[mdns] = ev.Groups[mdns]
	ev.Groups = both
	if all := returned(b.step(ev)); len(all) > 0 {
		t.Errorf("another group came: %v", all)
	}
	old := b.snap
	left := ev.Groups[mdns]
	ev.Groups = map[hca.GID]hca.UDDest{allNodes: both[allNodes]}
	all := returned(b.step(ev))
	if want := (DestroyAH{left.AH, old.Epoch()}); len(all) != 1 || all[0] != want {
		t.Errorf("a group went: %v, want only %v", all, want)
	}
	b.wantGroup(mdns, broadcast)
	b.wantGroup(allNodes, both[allNodes])
	if to, ok := old.Group(mdns); !ok || to != left {
		t.Errorf("the old snapshot has %v, want %v", to, left)
	}
	ev.Groups = groupsOf(allNodes) // the same group with another handle
	if all := returned(b.step(ev)); len(all) != 1 || all[0].AH != both[allNodes].AH {
		t.Errorf("a handle changed: %v, want the old one", all)
	}
	all = returned(append(b.step(Detached{}), b.step(attachedAt(selfEnd))...))
	if len(all) > 0 {
		t.Errorf("the QP was replaced: %v", all)
	}
}
