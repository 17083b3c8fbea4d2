package subnet

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa"
)

// joined reports whether a user has become a member of the broadcast group since the last call.
func joined(u *User) func() bool {
	return func() bool { return len(results[sa.Joined](u)) > 0 }
}

// Joins and queries for paths are answered at once, by one queue pair.
func TestJoinsAndPaths(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u, qpn := r.user(), r.dev.queuePair()
		u.Join(broadcast, false)
		synctest.Wait()
		got := results[sa.Joined](u)
		if len(got) != 1 || got[0].MGID != broadcast || got[0].Group.QKey != 0x1234 || got[0].Group.SL != 3 || got[0].Group.MTU != 2048 {
			t.Errorf("joined: %+v", got)
		}
		u.FindPath(r.peerGID(), 0, false)
		u.FindPath(hca.GID{1}, 0, false)
		synctest.Wait()
		var found, failed int
		for _, a := range u.Take() {
			switch a := a.(type) {
			case sa.PathFound:
				found++
				if a.Key.DGID != r.peerGID() || a.Path.DLID != peerLID || a.Path.SL != 3 {
					t.Errorf("path: %+v", a)
				}
			case sa.PathFailed:
				failed++
				if a.Key.DGID != (hca.GID{1}) || a.Reason != sa.ReasonNoPath {
					t.Errorf("no path: %+v", a)
				}
			}
		}
		if found != 1 || failed != 1 || r.dev.queuePair() != qpn || u.Trouble() != nil {
			t.Errorf("%d paths found, %d failed, queue pair %s, was %s, %v", found, failed, r.dev.queuePair(), qpn, u.Trouble())
		}
		if s := r.port.Stats(); s.Sent != 4 || s.Answered != 4 || s.Received != 4 { // with the ClassPortInfo
			t.Errorf("counters: %+v", s)
		}
	})
}

// A queue pair that cannot be opened is tried again after pauses. The trouble is logged once, and is over with the first
// that opens.
func TestQueuePairCannotBeOpened(t *testing.T) {
	const tries = 5
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		time.Sleep((tries - 1) * reopenPause)
		synctest.Wait()
		if err := u.Trouble(); err == nil || len(u.Take()) > 0 {
			t.Errorf("trouble: %v", err)
		}
		took := until(t, 5*time.Second, "a member", joined(u))
		if u.Trouble() != nil || took > 2*time.Second {
			t.Errorf("after another %s, trouble: %v", took, u.Trouble())
		}
		if n := r.log.count("cannot ask the subnet administrator"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	}, faults.Fault{Kind: faults.CreateQPFails, Count: tries})
}

// A queue pair that fails is opened again, and the request that was lost is repeated.
func TestQueuePairFails(t *testing.T) {
	for _, kind := range []faults.Kind{faults.SendErrorErr, faults.SendFlushErr, faults.RecvErrorErr, faults.CQOverrun} {
		t.Run(kind.String(), func(t *testing.T) {
			onPort(t, func(t *testing.T, r *rig) {
				u, qpn := r.user(), r.dev.queuePair()
				u.Join(broadcast, false)
				until(t, time.Second, "a member", joined(u))
				r.inject(faults.Fault{Kind: kind})
				u.FindPath(r.peerGID(), 0, false)
				took := until(t, 10*time.Second, "answered", func() bool { return len(results[sa.PathFound](u)) > 0 })
				if r.dev.queuePair() == qpn || took > 2*time.Second {
					t.Errorf("after %s; queue pair %s, was %s", took, r.dev.queuePair(), qpn)
				}
				if n := r.log.count("cannot ask the subnet administrator"); n != 1 {
					t.Errorf("%d warnings", n)
				}
				if n := len(r.dev.handles()); n != 1 {
					t.Errorf("%d address handles", n)
				}
			})
		})
	}
}

// If no handle of the subnet manager can be made, the queue pair is opened again.
func TestHandleCannotBeMade(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u, qpn := r.user(), r.dev.queuePair()
		r.subnet.MoveSM(100, 1)
		r.port.View(r.at.Attr()) // the handle of the first request leads elsewhere
		r.inject(faults.Fault{Kind: faults.VerbENOMEM, Verb: "create_ah"})
		u.Join(broadcast, false)
		took := until(t, 10*time.Second, "a member", joined(u))
		if r.dev.queuePair() == qpn || took > 2*time.Second || r.log.count("create an address handle of the subnet administrator") != 1 {
			t.Errorf("after %s; queue pair %s, was %s", took, r.dev.queuePair(), qpn)
		}
	})
}

// A request that cannot be sent takes none of those with it that came at the same time.
func TestNothingIsLostWithAFailure(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		r.subnet.MoveSM(100, 1)
		r.inject(faults.Fault{Kind: faults.VerbENOMEM, Verb: "create_ah"})
		u.groups[broadcast], u.groups[mdns] = true, true
		r.port.View(r.at.Attr())
		r.port.put(sa.Join{Owner: u.owner, MGID: broadcast}, sa.RefreshPath{Key: sa.PathKey{DGID: r.peerGID(), PKey: u.pkey}}, sa.Join{Owner: u.owner, MGID: mdns})
		var joins, paths int
		until(t, 10*time.Second, "answered", func() bool {
			for _, a := range u.Take() {
				switch a.(type) {
				case sa.Joined:
					joins++
				case sa.PathFound:
					paths++
				}
			}
			return joins == 2 && paths == 1
		})
	})
}

// A queue pair that fails with each request is logged once, until a MAD has arrived.
func TestEndlessFailuresAreLoggedOnce(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		until(t, time.Second, "a member", joined(u))
		for range 2 {
			r.inject(faults.Fault{Kind: faults.SendErrorErr, Count: math.MaxInt})
			u.FindPath(r.peerGID(), 0, true)
			time.Sleep(20 * time.Second)
			r.faults.Clear()
			until(t, time.Minute, "answered", func() bool {
				u.FindPath(r.peerGID(), 0, true) // again, after a query has failed
				return len(results[sa.PathFound](u)) > 0
			})
			time.Sleep(2 * time.Second) // so soon, the answer would be repeated
		}
		if n := r.log.count("cannot ask the subnet administrator"); n != 2 {
			t.Errorf("%d warnings", n)
		}
	})
}

// A subnet manager that moves to another LID and SL is asked by another handle. The former one is closed.
func TestSubnetManagerMoves(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u, qpn := r.user(), r.dev.queuePair()
		u.Join(broadcast, false)
		until(t, time.Second, "a member", joined(u))
		for i := range uint8(5) {
			r.subnet.MoveSM(100+uint16(i), i)
			r.port.View(r.at.Attr())
			u.FindPath(r.peerGID(), 0, true)
			until(t, 3*time.Second, "answered", func() bool { return len(results[sa.PathFound](u)) > 0 })
			want := []hca.AHSpec{{Port: 1, DLID: 100 + uint16(i), SL: i}}
			if got := r.dev.handles(); !slices.Equal(got, want) {
				t.Errorf("handles: %+v, want %+v", got, want)
			}
		}
		if r.dev.queuePair() != qpn {
			t.Errorf("queue pair %s, was %s", r.dev.queuePair(), qpn)
		}
	})
}

// Stop ends a port without an open queue pair at once.
func TestStopWhileWaiting(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		time.Sleep(reopenPause / 2)
		r.port.Stop()
		synctest.Wait()
		if !r.ended.Load() || r.dev.Err() != nil {
			t.Errorf("ended: %t, device: %v", r.ended.Load(), r.dev.Err())
		}
	}, faults.Fault{Kind: faults.CreateQPFails, Count: math.MaxInt})
}

// Stop ends a port that waits for the SA at once, and leaves the device as it is.
func TestStopWhileAsking(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		r.lost.Store(true)
		u := r.user()
		u.Join(broadcast, false)
		time.Sleep(time.Second)
		r.port.Stop()
		r.port.Stop()
		synctest.Wait()
		if !r.ended.Load() || r.dev.Err() != nil {
			t.Errorf("ended: %t, device: %v", r.ended.Load(), r.dev.Err())
		}
		u.Join(mdns, false) // a user may be late
		u.Close()
	})
}

// A user that leaves before the port is stopped ends its memberships: the request is sent, although its answer is not
// waited for.
func TestStopSendsWhatUsersAskedFor(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		u.Join(mdns, false)
		synctest.Wait()
		u.Close()
		r.port.Stop()
		synctest.Wait()
		if !r.ended.Load() || r.dev.Err() != nil {
			t.Errorf("ended: %t, device: %v", r.ended.Load(), r.dev.Err())
		}
		if n := r.asked(mad.MethodDelete, mdns); n != 1 || len(r.sa.Members(mdns)) != 0 {
			t.Errorf("%d leaves, members %v", n, r.sa.Members(mdns))
		}
	})
}

// If a call hangs when the port is stopped, the device fails, and the session is released although the call never
// returns.
func TestStopWhileACallHangs(t *testing.T) {
	for _, verb := range []string{"poll_cq", "post_send", "post_recv"} {
		t.Run(verb, func(t *testing.T) {
			onPort(t, func(t *testing.T, r *rig) {
				u := r.user()
				r.inject(faults.Fault{Kind: faults.VerbHangs, Verb: verb})
				u.Join(broadcast, false)
				time.Sleep(time.Second)
				if r.dev.Err() != nil {
					t.Fatal("the device has failed before the stop")
				}
				r.port.Stop()
				took := until(t, 5*time.Second, "released", r.ended.Load)
				if r.dev.Err() == nil || took > 2*time.Second {
					t.Errorf("after %s; device: %v", took, r.dev.Err())
				}
			})
		})
	}
}

// A device that fails ends the port, which releases the session, whatever the port does at that moment.
func TestDeviceFails(t *testing.T) {
	test := func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		time.Sleep(reopenPause / 2)
		r.inject(faults.Fault{Kind: faults.DeviceFatal})
		r.dev.Fail(hca.ErrIO) // as the device's owner does after the event
		took := until(t, 5*time.Second, "released", r.ended.Load)
		if took > reopenPause {
			t.Errorf("after %s", took)
		}
		if n := len(r.dev.handles()); n != 0 {
			t.Errorf("%d address handles", n)
		}
	}
	t.Run("in use", func(t *testing.T) { onPort(t, test) })
	t.Run("waiting", func(t *testing.T) {
		onPort(t, test, faults.Fault{Kind: faults.CreateQPFails, Count: math.MaxInt})
	})
}

// The P_Key index of MADs is that of the default partition, as a full or a limited member. If it moves, the queue pair
// is opened again.
func TestDefaultPartitionMoves(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		until(t, time.Second, "a member", joined(u))
		for _, table := range [][]hca.PKey{{0x8001, 0xffff}, {0x8001, 0, 0x7fff}, {0x7fff, 0xffff}, {0xffff}} {
			time.Sleep(2 * time.Second) // so soon, the answer would be repeated
			qpn := r.dev.queuePair()
			r.at.Change(func(a *hca.PortAttr) { a.PKeys = table })
			r.port.View(r.at.Attr())
			u.FindPath(r.peerGID(), 0, true)
			took := until(t, 5*time.Second, "answered", func() bool { return len(results[sa.PathFound](u)) > 0 })
			if took > 2*time.Second || r.dev.queuePair() == qpn {
				t.Errorf("%04x: after %s, by queue pair %s, was %s", table, took, r.dev.queuePair(), qpn)
			}
		}
		if n := r.log.count("level=WARN"); n != 0 {
			t.Errorf("%d warnings", n)
		}
	})
}

// The kernel's own IPoIB interfaces on the port use the same memberships. A group that they want is not left, and when they
// have left one, all memberships are set again.
func TestKernelGroups(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		u.Join(mdns, false)
		until(t, time.Second, "a member", joined(u))
		for _, c := range []struct {
			wanted []hca.GID
			joins  int
		}{{[]hca.GID{mdns}, 0}, {nil, 1}, {[]hca.GID{mdns}, 0}} {
			time.Sleep(35 * time.Second) // a flurry is over
			before := r.asked(mad.MethodSet, mdns)
			r.at.Change(func(a *hca.PortAttr) { a.KernelGroups = c.wanted })
			for range 2 {
				r.port.View(r.at.Attr())
				time.Sleep(time.Second)
			}
			if n := r.asked(mad.MethodSet, mdns) - before; n != c.joins {
				t.Errorf("%d joins when the kernel wants %v", n, c.wanted)
			}
		}
		u.Leave(mdns)
		time.Sleep(time.Second)
		if got := r.sa.Members(mdns); !slices.Equal(got, []uint16{ownLID}) {
			t.Errorf("members %v of a group that the kernel wants", got)
		}
		u.Join(mdns, false)
		r.at.Change(func(a *hca.PortAttr) { a.KernelGroups = nil })
		r.port.View(r.at.Attr())
		u.Leave(mdns)
		time.Sleep(time.Second)
		if got := r.sa.Members(mdns); len(got) != 0 {
			t.Errorf("members %v, want none", got)
		}
	})
}

// Events of the port reach the client. Without one, no membership is set again before its time.
func TestEvents(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		u := r.user()
		u.Join(broadcast, false)
		until(t, time.Second, "a member", joined(u))
		for i, ev := range []hca.EventType{hca.EventClientReregister, hca.EventSMChange, hca.EventLIDChange} {
			time.Sleep(35 * time.Second) // a flurry is over; the membership is renewed each minute
			before := r.asked(mad.MethodSet, broadcast)
			r.port.Event(ev)
			r.port.Event(hca.EventGIDChange)
			time.Sleep(time.Second)
			if n := r.asked(mad.MethodSet, broadcast) - before; n != 1 {
				t.Errorf("event %d: %d joins", i, n)
			}
		}
		r.port.Event(hca.EventPortErr)
		synctest.Wait()
		if got := results[sa.JoinFailed](u); len(got) != 1 || got[0].Reason != sa.ReasonPortNotActive {
			t.Errorf("port down: %+v", got)
		}
		r.port.View(r.at.Attr())
		until(t, time.Second, "a member", joined(u))
	})
}
