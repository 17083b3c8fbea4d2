package soft

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// fillSends fills the send queue with messages for ah.
func (r *rig) fillSends(ah hca.AH) {
	r.Helper()
	for range rigDepth {
		r.sendOn(ah, 5)
	}
}

// completed polls the send completions and returns how many there are. It fails the test
// if one is not a success.
func (r *rig) completed() (n int) {
	r.Helper()
	wc := make([]hca.WC, 2*rigDepth)
	n = have(r.send.Poll(wc))(r)
	for _, c := range wc[:n] {
		if c.Status != hca.WCSuccess {
			r.Errorf("completion %+v, want success", c)
		}
	}
	return n
}

// When the wire stays full, the whole send queue is dropped after a few milliseconds.
// Each datagram is counted, and the device reports that the wire was full (R08).
func TestR08WireThatStaysFullDrops(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		start, before := time.Now(), r.dev.WireBlocked()
		r.fillSends(ah)
		synctest.Wait()
		if n := r.completed(); n != 0 {
			t.Errorf("%d sends completed without back-pressure", n)
		}
		if r.dev.WireBlocked() == before {
			t.Error("WireBlocked does not report that the wire is full")
		}
		for n := 0; n < rigDepth && time.Since(start) < time.Second; n += r.completed() {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(start)
		t.Logf("%d sends completed within %v", rigDepth, took)
		if took > 2*backPressure {
			t.Errorf("a full wire held the sends for %v", took)
		}
		r.wantCounts(map[string]uint64{"tx_drop_no_room": rigDepth, "tx_packets": 0})
		_ = ah.Close()
	})
}

// While the wire stays full, each send waits for its own bound only: the waits do not add
// up.
func TestWireThatStaysFullBoundsTheWait(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		start, sent, done := time.Now(), 0, 0
		for time.Since(start) < time.Second {
			r.fillSends(ah)
			sent += rigDepth
			posted := time.Now()
			for synctest.Wait(); done < sent; synctest.Wait() {
				if time.Since(posted) > 2*backPressure {
					t.Errorf("a send was held for %v", time.Since(posted))
					return
				}
				time.Sleep(100 * time.Microsecond)
				done += r.completed()
			}
		}
		t.Logf("%d sends in %v", sent, time.Since(start))
		r.wantCounts(map[string]uint64{"tx_drop_no_room": uint64(sent)})
		_ = ah.Close()
	})
}

// No packet is lost when the wire takes packets again within a few milliseconds.
func TestWireThatIsFullForAMomentLosesNothing(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		r.fillSends(ah)
		time.Sleep(backPressure / 2)
		r.port.SetWritable(true)
		synctest.Wait()
		if n := r.completed(); n != rigDepth {
			t.Errorf("%d of %d sends completed", n, rigDepth)
		}
		r.wantCounts(map[string]uint64{"tx_drop_no_room": 0, "tx_packets": rigDepth})
		_ = ah.Close()
	})
}

// brokenWait is a transport whose WaitWritable fails while broken is set.
type brokenWait struct {
	transport.Transport
	broken atomic.Bool
}

func (b *brokenWait) WaitWritable(ctx context.Context) error {
	if b.broken.Load() {
		return errors.New("no such wait")
	}
	return b.Transport.WaitWritable(ctx)
}

// A failed wait for the wire does not leave send queues blocked for good.
func TestSendingSurvivesAFailedWait(t *testing.T) {
	var transport brokenWait
	broken := func(c *Config) {
		transport.Transport = c.Transport
		c.Transport = &transport
	}
	bubble(t, broken, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		transport.broken.Store(true)
		r.sendOn(ah, 5)
		time.Sleep(time.Second)
		r.port.SetWritable(true)
		transport.broken.Store(false)
		r.sendOn(ah, 5)
		time.Sleep(time.Second)
		if n := r.completed(); n != 2 {
			t.Errorf("%d of 2 sends completed", n)
		}
		r.port.SetWritable(false)
		r.sendOn(ah, 5)
		time.Sleep(time.Second)
		if n := r.completed(); n != 1 {
			t.Errorf("%d of 1 send completed while the wire is full", n)
		}
		_ = ah.Close()
	})
}

// oneByOne is a transport that takes one packet at a time.
type oneByOne struct{ transport.Transport }

func (o oneByOne) Send(pkts []transport.Packet) (int, error) { return o.Transport.Send(pkts[:1]) }

// A peer of the other family counts once for each multicast, even when the wire takes
// the copies in several batches.
func TestSkippedPeersAreCountedOnce(t *testing.T) {
	a, b, other := rigPeer, netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("fd00::9:9")
	peers := []netip.Addr{other, a, other, other, b, a, other}
	slow := func(c *Config) {
		c.Transport, c.Peers = oneByOne{c.Transport}, func() []netip.Addr { return peers }
	}
	bubble(t, slow, func(r *rig) {
		ah := r.ah(netip.MustParseAddr("239.9.9.9"))
		r.sendOn(ah, hca.QPNMulticast)
		time.Sleep(time.Second)
		r.wantCounts(map[string]uint64{"tx_packets": 3, "tx_looped": 1, "tx_drop_peer_family": 4})
		_ = ah.Close()
	})
}

// A valid datagram for a QPN without a QP is reported with its sender. Damaged datagrams
// and those for reserved QPNs are not reported.
func TestStraysAreReported(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		var notified, stopped atomic.Int32
		r.dev.NotifyStrays(func() { notified.Add(1) })
		r.dev.NotifyStrays(func() { stopped.Add(1) })()
		for i, to := range []hca.QPN{r.qp.Num() ^ 1<<20, r.qp.Num() ^ 1<<21, 0, hca.QPNGSI, hca.QPNMulticast, r.qp.Num()} {
			r.port.Inject(r.message(func(h *roce.BTH, d *roce.DETH, _ *roce.Path) {
				h.DestQPN, d.SrcQPN = to, hca.QPN(0x100+i)
			}))
		}
		damaged := r.message(func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN ^= 1 << 20 })
		damaged.Data[21] ^= 1
		r.port.Inject(damaged)
		time.Sleep(time.Second)
		sgid := hca.GIDFromAddr(rigPeer)
		want := hca.Strays{
			{Number: 1, PKey: hca.PKeyDefault, QKey: rigQKey, SGID: sgid, SrcQPN: 0x100},
			{Number: 2, PKey: hca.PKeyDefault, QKey: rigQKey, SGID: sgid, SrcQPN: 0x101},
		}
		if got, ok := r.dev.Strays(); got != want || !ok {
			t.Errorf("strays %+v, want %+v", got, want)
		}
		if notified.Load() != 2 || stopped.Load() != 0 {
			t.Errorf("%d notifications, want 2, and %d after the end, want none", notified.Load(), stopped.Load())
		}
	})
}

// Neither senders of other partitions nor a forger that repeats itself displace a
// sender. When there are too many, the sender that has been silent longest makes room.
func TestStraysAreBounded(t *testing.T) {
	var s strays
	note := func(pkey hca.PKey, from hca.QPN) {
		s.note(&softqp.Inbound{DestQPN: 0x777, PKey: pkey, SrcQPN: from, Path: roce.Path{Src: rigPeer}})
	}
	has := func(from hca.QPN) bool {
		return slices.ContainsFunc(s.senders[:], func(st hca.Stray) bool { return st.SrcQPN == from })
	}
	const honest = 0x100
	note(hca.PKeyDefault, honest)
	for range 1000 {
		note(0x8001, 0x200)
		note(0x8002, 0x200)
		note(hca.PKeyDefault, 0x300)
	}
	if !has(honest) {
		t.Error("three senders displaced a fourth")
	}
	note(hca.PKeyDefault, honest)
	for i := range hca.QPN(hca.MaxStrays - 1) {
		note(hca.PKeyDefault, 0x1000+i)
	}
	if !has(honest) || has(0x200) || has(0x300) {
		t.Error("the senders that were silent longest did not make room")
	}
	note(hca.PKeyDefault, 0x2000)
	if has(honest) || !has(0x2000) || s.count != 3002+hca.MaxStrays {
		t.Errorf("%d strays, %+v", s.count, s.senders)
	}
}
