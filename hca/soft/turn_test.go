package soft

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// owner takes completions of a rig's receive CQ as an owner does: Poll, Arm, Poll, Wait.
func (r *rig) owner(stop <-chan struct{}, took func(n int)) error {
	wc := make([]hca.WC, hca.Batch)
	for {
		n, err := r.recv.Poll(wc)
		if err != nil {
			return err
		}
		if n > 0 {
			took(n)
			continue
		}
		select {
		case <-stop:
			return nil
		default:
		}
		if err := r.recv.Arm(); err != nil {
			return err
		}
		n, err = r.recv.Poll(wc)
		if err != nil {
			return err
		}
		if n > 0 {
			took(n)
			continue
		}
		if err := r.recv.Wait(time.Time{}); err != nil {
			return err
		}
	}
}

// An owner with few receives loses nothing: its Wait delivers as many messages as it has
// receives, and the next one the rest.
func TestOwnerWithFewReceivesLosesNothing(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		const receives, messages = 3, 1000
		r.postRecv(receives)
		for range messages {
			r.port.Inject(r.message(nil))
		}
		stop, ended, got := make(chan struct{}), make(chan error, 1), 0
		start := time.Now()
		go func() { ended <- r.owner(stop, func(n int) { got += n; r.postRecv(n) }) }()
		synctest.Wait()
		if took := time.Since(start); got != messages || took > 0 {
			t.Errorf("the owner got %d messages in %v of virtual time, want %d without a wait", got, took, messages)
		}
		r.wantCounts(map[string]uint64{"rx_packets": messages, "rx_delivered": messages, "rx_drop_no_recv": 0})
		close(stop)
		r.recv.Wake()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// An owner that polls but posts nothing cannot stop the device: what it has no receive for is
// dropped.
func TestOwnerWithoutReceivesDrops(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(2)
		for range 10 {
			r.port.Inject(r.message(nil))
		}
		stop, ended, got := make(chan struct{}), make(chan error, 1), 0
		go func() { ended <- r.owner(stop, func(n int) { got += n }) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if got != 2 {
			t.Errorf("the owner got %d messages, want 2", got)
		}
		r.wantCounts(map[string]uint64{"rx_packets": 10, "rx_delivered": 2, "rx_drop_no_recv": 8})
		close(stop)
		r.recv.Wake()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// While the owner of a CQ does something else for long, the stand-in delivers its messages. It
// drops one every 2 s that has no receive, and the others stay in the transport.
func TestStandInReceivesForABusyOwner(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(2)
		if err := r.recv.Arm(); err != nil {
			t.Fatal(err)
		}
		r.port.Inject(r.message(nil))
		if err := r.recv.Wait(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(standInAfter)
		synctest.Wait()
		for range 5 {
			r.port.Inject(r.message(nil))
		}
		for dropped := range uint64(4) {
			time.Sleep(soleLimit - time.Nanosecond)
			synctest.Wait()
			r.wantCounts(map[string]uint64{"rx_delivered": 2, "rx_drop_no_recv": dropped})
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		}
		r.wantCounts(map[string]uint64{"rx_packets": 6, "rx_delivered": 2, "rx_drop_no_recv": 4})
		// The next Wait takes the turn from the stand-in.
		wc := make([]hca.WC, 4)
		if n := have(r.recv.Poll(wc))(t); n != 2 {
			t.Errorf("%d completions, want 2", n)
		}
		r.postRecv(1)
		if err := r.recv.Arm(); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- r.recv.Wait(time.Time{}) }()
		synctest.Wait()
		if r.dev.lanes[0].turn.standIn.Load() {
			t.Error("the stand-in keeps the turn while an owner waits")
		}
		r.port.Inject(r.message(nil))
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// An owner may ask the stand-in for the turn, and get its message before the stand-in sees that. The next
// message without a receive is waited for nevertheless.
func TestStandInWaitsAfterAnOwnerWasServed(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(1)
		time.Sleep(standInAfter)
		synctest.Wait()
		notify(r.dev.lanes[0].turn.wanted) // what such an owner leaves behind
		r.port.Inject(r.message(nil))
		r.port.Inject(r.message(nil))
		time.Sleep(soleLimit - time.Nanosecond)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"rx_delivered": 1, "rx_drop_no_recv": 0})
		r.postRecv(1)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"rx_delivered": 2, "rx_drop_no_recv": 0})
	})
}

// An owner that never waits, but polls and posts every 2 s, loses neither unicast nor multicast
// messages.
func TestStandInLosesNothingOfALateOwner(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		const receives, messages = 3, 40
		to := netip.MustParseAddr("239.1.2.3")
		group := hca.MulticastGroup{MGID: hca.GIDFromAddr(to)}
		if err := r.qp.AttachMulticast(group); err != nil {
			t.Fatal(err)
		}
		r.postRecv(receives)
		toGroup := r.message(func(h *roce.BTH, _ *roce.DETH, p *roce.Path) { h.DestQPN, p.Dst = hca.QPNMulticast, to })
		for range messages / 2 {
			r.port.Inject(r.message(nil))
			r.port.Inject(toGroup)
		}
		wc, got := make([]hca.WC, hca.Batch), 0
		for range messages {
			time.Sleep(soleLimit - time.Millisecond)
			synctest.Wait()
			n := have(r.recv.Poll(wc))(t)
			r.postRecv(n)
			got += n
		}
		if got != messages {
			t.Errorf("the owner got %d messages, want %d", got, messages)
		}
		r.wantCounts(map[string]uint64{"rx_packets": messages, "rx_delivered": messages, "rx_drop_no_recv": 0})
		if err := r.qp.DetachMulticast(group); err != nil {
			t.Error(err)
		}
	})
}

// The stand-in waits for receives of a QP although the owner of another one wants the turn.
func TestStandInWaitsWhileAnotherOwnerWaits(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		slow := *r
		slow.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
		slow.qp = have(r.pd.CreateQP(r.qp.Spec(), r.send, slow.recv))(t)
		slow.up()
		r.port.Inject(slow.message(nil))
		synctest.Wait() // the stand-in waits
		ended := make(chan error, 1)
		go func() { ended <- r.recv.Wait(time.Time{}) }()
		synctest.Wait()
		slow.postRecv(1)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"rx_delivered": 1, "rx_drop_no_recv": 0})
		r.recv.Wake()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, c := range []interface{ Close() error }{slow.qp, slow.recv} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The stand-in waits for receives of the only QP. A new QP gets its messages at once nevertheless, as do
// those after it once the QP that is waited for is closed.
func TestStandInTurnsToANewQP(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.port.Inject(r.message(nil))
		synctest.Wait() // the stand-in waits
		for delivered := range uint64(2) {
			other := *r
			other.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
			other.qp = have(r.pd.CreateQP(r.qp.Spec(), r.send, other.recv))(t)
			other.up()
			other.postRecv(1)
			r.port.Inject(other.message(nil))
			synctest.Wait()
			r.wantCounts(map[string]uint64{"rx_delivered": delivered + 1, "rx_drop_no_recv": 1})
			for _, c := range []interface{ Close() error }{other.qp, other.recv} {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// The close of a device does not wait for receives of a QP without an owner.
func TestCloseDoesNotWaitForReceives(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		for range hca.Batch {
			r.port.Inject(r.message(nil))
		}
		synctest.Wait()
		start := time.Now()
		for _, l := range r.dev.lanes {
			if err := l.close(); err != nil {
				t.Error(err)
			}
			l.turn.free <- struct{}{} // for the close of the rig
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the close took %v", took)
		}
		if n := r.counted("rx_packets"); n == 0 || n != r.counted("rx_drop_no_recv") { // the rest was not read
			t.Errorf("%d packets received, %d dropped", n, r.counted("rx_drop_no_recv"))
		}
	})
}

// Two owners wait: one reads the transport, and each gets its own messages, whichever reads.
func TestOwnersTakeTurns(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		other := *r
		other.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
		other.qp = have(r.pd.CreateQP(r.qp.Spec(), r.send, other.recv))(t)
		other.up()
		stop, ended := make(chan struct{}), make(chan error, 2)
		var got [2]int
		for i, o := range []*rig{r, &other} {
			o.postRecv(8)
			go func() { ended <- o.owner(stop, func(n int) { got[i] += n; o.postRecv(n) }) }()
		}
		const rounds = 100
		for range rounds {
			r.port.Inject(r.message(nil))
			r.port.Inject(other.message(nil))
			other.port.Inject(other.message(nil))
			synctest.Wait()
		}
		if got != [2]int{rounds, 2 * rounds} {
			t.Errorf("the owners got %v messages, want %d and %d", got, rounds, 2*rounds)
		}
		close(stop)
		r.recv.Wake()
		other.recv.Wake()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		for _, c := range []interface{ Close() error }{other.qp, other.recv} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Whatever ends a Wait ends one that reads the transport as well: its deadline, Wake, a
// completion from this port itself, and Close.
func TestWaitThatReadsTheTransportEnds(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		wait := func(what string, until time.Time, end func()) {
			t.Helper()
			if err := r.recv.Arm(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- r.recv.Wait(until) }()
			synctest.Wait()
			if r.dev.lanes[0].turn.reader.Load() != r.recv {
				t.Errorf("%s: the Wait does not read the transport", what)
			}
			end()
			synctest.Wait()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			default:
				t.Errorf("%s: the Wait has not ended", what)
				r.recv.Wake()
				t.Log(<-ended)
			}
		}
		wait("deadline", time.Now().Add(time.Second), func() { time.Sleep(time.Second) })
		wait("Wake", time.Time{}, r.recv.Wake)
		r.postRecv(1)
		ah := r.ah(testV4)
		wait("message of this port to itself", time.Time{}, func() { r.sendOn(ah, r.qp.Num()) })
		if err := ah.Close(); err != nil {
			t.Error(err)
		}
		wait("flush", time.Time{}, func() {
			r.postRecv(1)
			if err := r.qp.Modify(hca.QPAttr{State: hca.QPErr}, hca.AttrState); err != nil {
				t.Error(err)
			}
		})
	})
}
