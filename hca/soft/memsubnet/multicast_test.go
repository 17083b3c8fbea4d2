package memsubnet_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/soft/memsubnet"
)

var (
	group      = hca.MulticastGroup{MGID: mgid, MLID: mlid}
	otherMGID  = hca.GID{0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 15: 1}
	otherGroup = hca.MulticastGroup{MGID: otherMGID, MLID: mlid} // an SM may give one MLID to several groups
	moved      = hca.MulticastGroup{MGID: mgid, MLID: mlid + 1}
)

// attachTo attaches the queue pair of a host, and detaches it at the end of the test.
func (h *host) attachTo(g hca.MulticastGroup) {
	h.Helper()
	h.must(h.qp.AttachMulticast(g))
	h.Cleanup(func() { h.must(h.qp.DetachMulticast(g)) })
}

// A message to a group reaches the queue pairs that are attached to exactly this MGID and MLID at full members, and
// only if its sender is a member. It has a GRH.
func TestMulticastByMembersOnly(t *testing.T) {
	const (
		no = iota
		sendOnly
		full
		otherMLID
	)
	for _, c := range []struct {
		sender, receiver int
		attached         hca.MulticastGroup
		dropped          memsubnet.Drop
		arrives          bool
	}{
		{full, full, group, "", true},
		{sendOnly, full, group, "", true},
		{no, full, group, memsubnet.DropNotMember, false},
		{otherMLID, full, group, memsubnet.DropNotMember, false},
		{full, no, group, memsubnet.DropNotJoined, false},
		{full, sendOnly, group, memsubnet.DropNotJoined, false},
		{full, otherMLID, group, memsubnet.DropNotJoined, false},
		{full, full, moved, "", false},
		{full, full, otherGroup, "", false},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := subnet(t)
				a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
				for lid, how := range map[uint16]int{4: c.sender, 8: c.receiver} {
					g := group
					if how == otherMLID {
						g = moved
					}
					if how != no && !s.Join(lid, g.MGID, g.MLID, how == sendOnly) {
						t.Fatal("no such port")
					}
				}
				b.attachTo(c.attached)
				a.send(a.toGroup(group), "to all")
				if c.arrives {
					m := b.want("to all")[0]
					sgid, dgid, err := hca.ParseGRH(m.area[:], m.Network)
					if m.SLID != 4 || m.Flags&hca.WCFlagGRH == 0 || sgid != a.port.Attr().GIDs[0].GID || dgid != mgid || err != nil {
						t.Errorf("completion %+v from %v to %v, %v", m.WC, sgid, dgid, err)
					}
				} else {
					b.want()
				}
				want := map[memsubnet.Drop]uint64{}
				if c.dropped != "" {
					want[c.dropped] = 1
				}
				wantDrops(t, s, want)
			})
		})
	}
}

// Switches forward by MLID, so a member of one group forwards another group with the same MLID, and the queue
// pairs choose by MGID. Memberships of both end separately.
func TestMembershipsOfOneMLID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		s.Join(4, mgid, mlid, false)
		s.Join(8, mgid, mlid, false)
		s.Join(8, otherMGID, mlid, false)
		b.attachTo(otherGroup)
		a.send(a.toGroup(otherGroup), "1")
		a.send(a.toGroup(group), "not attached")
		b.want("1")
		s.Leave(8, mgid, mlid)
		a.send(a.toGroup(otherGroup), "2")
		b.want("2")
		s.Leave(8, otherMGID, mlid)
		a.send(a.toGroup(otherGroup), "left")
		b.want()
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNotJoined: 1})
		if s.Join(9, mgid, mlid, false) {
			t.Error("LID 9 has joined")
		}
	})
}

// A queue pair has a group at one MLID only. After the subnet manager has changed the MLID, it detaches and
// attaches again.
func TestOneMLIDForAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		for _, lid := range []uint16{4, 8} {
			s.Join(lid, mgid, moved.MLID, false)
			s.Join(lid, mgid, moved.MLID, true) // a full member stays full
		}
		b.must(b.qp.AttachMulticast(group))
		for what, err := range map[string]error{
			"attach again":              b.qp.AttachMulticast(group),
			"attach at another MLID":    b.qp.AttachMulticast(moved),
			"detach from another MLID":  b.qp.DetachMulticast(moved),
			"attach without MLID":       b.qp.AttachMulticast(hca.MulticastGroup{MGID: otherMGID}),
			"attach at a unicast LID":   b.qp.AttachMulticast(hca.MulticastGroup{MGID: otherMGID, MLID: 8}),
			"attach at the last LID":    b.qp.AttachMulticast(hca.MulticastGroup{MGID: otherMGID, MLID: 0xffff}),
			"attach to a unicast GID":   b.qp.AttachMulticast(hca.MulticastGroup{MGID: hca.GID{0xfe, 0x80}, MLID: mlid}),
			"detach from a third group": b.qp.DetachMulticast(otherGroup),
		} {
			if !errors.Is(err, hca.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		b.must(b.qp.DetachMulticast(group))
		b.attachTo(moved)
		a.send(a.toGroup(moved), "at the new MLID")
		b.want("at the new MLID")
	})
}

// A packet that is not forwarded does not affect those that arrive with it.
func TestForwardedAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		s.Join(4, mgid, mlid, true)
		b.attachTo(group)
		toB, toAll := a.to(b), a.toGroup(group)
		var wrs []hca.SendWR
		for i, to := range []hca.UDDest{toAll, toB, toAll, toAll, toB} {
			a.mr.Bytes()[receives*slot+i] = byte('0' + i)
			wrs = append(wrs, hca.SendWR{SGList: []hca.SGE{a.mr.SGE(receives*slot+i, 1)}, UD: to})
		}
		_, err := a.qp.PostSend(wrs)
		a.must(err)
		b.want("1", "4")
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNotJoined: 3})
	})
}
