package subnet

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa"
)

// Two users of one port share a membership: it is set once, and deleted after the last has left. The broadcast group is
// never left.
func TestUsersShareMemberships(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u, v := r.user(), r.user()
		for _, user := range []*User{u, v} {
			user.Join(broadcast, false)
			user.Join(mdns, false)
			synctest.Wait()
			if got := results[sa.Joined](user); len(got) != 2 {
				t.Errorf("joined: %+v", got)
			}
		}
		if n, m := r.asked(mad.MethodSet, broadcast), r.asked(mad.MethodSet, mdns); n != 1 || m != 1 {
			t.Errorf("%d joins of the broadcast group, %d of the other", n, m)
		}
		u.Leave(mdns)
		u.Close()
		time.Sleep(time.Second)
		if n := r.asked(mad.MethodDelete, mdns); n != 0 || !slices.Equal(r.sa.Members(mdns), []uint16{ownLID}) {
			t.Errorf("%d leaves, members %v", n, r.sa.Members(mdns))
		}
		v.Close()
		time.Sleep(time.Second)
		if n := r.asked(mad.MethodDelete, mdns); n != 1 || len(r.sa.Members(mdns)) != 0 {
			t.Errorf("%d leaves, members %v", n, r.sa.Members(mdns))
		}
		if n := r.asked(mad.MethodDelete, broadcast); n != 0 || !slices.Equal(r.sa.Members(broadcast), []uint16{ownLID}) {
			t.Errorf("%d leaves of the broadcast group, members %v", n, r.sa.Members(broadcast))
		}
		if s := r.port.Stats(); s.Groups != 0 {
			t.Errorf("%d groups are kept", s.Groups)
		}
	})
}

// Results about a group go to its members only, those about a path to all users of its partition. Of several results
// only the latest is kept, and none of a group that was left.
func TestResultsAreTheLatest(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		r.at.Change(func(a *hca.PortAttr) { a.PKeys = []hca.PKey{0xffff, 0x8001} })
		r.port.View(r.at.Attr())
		var calls atomic.Int64
		u := r.port.Use(0x7fff, func() { calls.Add(1) }) // a limited member
		same, other := r.user(), r.port.Use(0x8001, func() {})
		u.Join(broadcast, false)
		for range 10 {
			time.Sleep(2 * time.Second)
			r.sa.SetPort(r.peerGID(), r.peer.Attr().LID+1)
			u.FindPath(r.peerGID(), 0, true)
			r.port.Event(hca.EventPortErr)
			synctest.Wait()
			r.port.View(r.at.Attr())
			synctest.Wait()
			u.FindPath(r.peerGID(), 0, true)
			synctest.Wait()
			r.sa.SetPort(r.peerGID(), peerLID)
		}
		time.Sleep(2 * time.Second)
		u.FindPath(r.peerGID(), 0, true)
		time.Sleep(5 * time.Second)
		got := u.Take()
		if len(got) != 2 || calls.Load() < 30 {
			t.Errorf("results after %d calls: %+v", calls.Load(), got)
		}
		for _, a := range got {
			if p, ok := a.(sa.PathFound); ok && p.Path.DLID != peerLID {
				t.Errorf("path: %+v", p)
			} else if _, failed := a.(sa.JoinFailed); failed {
				t.Errorf("%+v", a)
			}
		}
		if len(u.Take()) != 0 || len(same.Take()) != 1 || len(other.Take()) != 0 {
			t.Error("results are taken twice, or reach a wrong user")
		}
		u.Join(mdns, false)
		synctest.Wait()
		u.Leave(mdns)
		if got := u.Take(); len(got) != 0 {
			t.Errorf("of a group that was left: %+v", got)
		}
		u.Leave(broadcast)
		u.Join(mdns, false) // it waits for the broadcast group, which no one wants
		r.port.Event(hca.EventPortErr)
		u.Leave(mdns)
		synctest.Wait()
		if got := results[sa.JoinFailed](u); len(got) != 0 {
			t.Errorf("of groups that were left: %+v", got)
		}
		u.Close()
		calls.Store(0)
		r.port.View(r.at.Attr())
		same.FindPath(r.peerGID(), 0, false)
		time.Sleep(time.Second)
		if n := calls.Load(); n != 0 || len(same.Take()) != 1 {
			t.Errorf("%d calls after Close", n)
		}
	})
}
