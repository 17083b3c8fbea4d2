package ud

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// repeater is a source that returns the same n frames on every read.
type repeater struct {
	frame []byte
	n     int
}

func (r *repeater) Wake() {}

func (r *repeater) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	n := min(r.n, len(bufs))
	for i := range n {
		sizes[i] = copy(bufs[i], r.frame)
	}
	return n, nil
}

// discarder is a slow path that discards everything.
type discarder struct{ full bool }

func (n discarder) FromHost([]byte) bool { return !n.full }

func (n discarder) FromFabric([]byte, Sender) Reason {
	if n.full {
		return SlowPathFull
	}
	return SlowPathed
}

// newTxLoop returns a Tx whose Pump carries n frames to a QP that completes
// sends at once.
func newTxLoop(t testing.TB, f []byte, n int) *txBench {
	b := newTxBench(t, 1024)
	b.cfg.Source, b.cfg.SlowPath = &repeater{f, n}, discarder{}
	b.qp.auto = true
	return b
}

// loopQP is a receive queue that costs next to nothing.
type loopQP struct {
	hca.QP
	ids     [1024]uint64
	next, n int
}

func (*loopQP) Spec() hca.QPSpec { return hca.QPSpec{RecvWRs: 1024} }

func (q *loopQP) PostRecv(wrs []hca.RecvWR) (int, error) {
	for i := range wrs {
		q.ids[(q.next+q.n)%len(q.ids)] = wrs[i].ID
		q.n++
	}
	return len(wrs), nil
}

func (q *loopQP) pop() uint64 {
	id := q.ids[q.next]
	q.next = (q.next + 1) % len(q.ids)
	q.n--
	return id
}

// newRxLoop returns an Rx and a function that delivers n messages to it.
func newRxLoop(t testing.TB, m []byte, n int) (*rxBench, func()) {
	return newRxLoopOf(t, m, n, hca.WC{Flags: hca.WCFlagGRH, SrcQPN: qpnB})
}

// newRxLoopOf is newRxLoop for messages with other completions.
func newRxLoopOf(t testing.TB, m []byte, n int, wc hca.WC) (*rxBench, func()) {
	b := newRxBench(t, 1024)
	b.Detach()
	b.cfg.SlowPath = discarder{}
	b.sink.discard = true
	q := &loopQP{}
	if err := b.Attach(q, b.qp.recvCQ, b.qp.mr, 2); err != nil {
		t.Fatal(err)
	}
	wc.ByteLen = uint32(hca.GRHLen + len(m))
	head, _ := received(gidB, gidA, m)
	return b, func() {
		for range n {
			wc.ID = q.pop()
			copy(b.ring.bytes(uint32(wc.ID)), head[:128]) // restore what the previous round overwrote
			b.qp.recvCQ.add(wc)
		}
		if err := b.Pump(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTxAllocatesNothing(t *testing.T) {
	for name, f := range map[string][]byte{
		"unicast":   toB(1400),
		"broadcast": frame(ipoib.Broadcast, macA, ipoib.EtherTypeIPv4, ipv4("10.0.0.255", 60)),
		"group":     frame(ipoib.MAC{0x33, 0x33, 0, 0, 0, 0xfb}, macA, ipoib.EtherTypeIPv6, udp6("ff02::fb")),
		"slow path": frame(macB, macA, ipoib.EtherTypeARP, make([]byte, 28)),
		"runt":      toB(60)[:20],
		"foreign":   frame(macB, macA, ipoib.EtherTypeIPv6, udp6("fe80::2")),
		"too long":  toB(testMTU + 1),
		"hidden ND": frame(macB, macA, ipoib.EtherTypeIPv6, behind(ns6("fe80::2"), 60)),
		"ethertype": frame(macB, macA, 0x8100, make([]byte, 60)),
	} {
		for _, n := range []int{1, hca.Batch} {
			b := newTxLoop(t, f, n)
			b.SetSources([]netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.1")})
			if got := testing.AllocsPerRun(100, func() { b.pump(t) }); got != 0 {
				t.Errorf("%s, %d at a time: %v allocations", name, n, got)
			}
			checkAccounts(t, b.Counters())
		}
	}
}

func TestTxAllocatesNothingForFailures(t *testing.T) {
	b := newTxLoop(t, toB(100), hca.Batch)
	b.qp.auto = false
	b.cfg.OnFailure = func(Failure) {}
	got := testing.AllocsPerRun(100, func() {
		b.pump(t)
		b.qp.completeSends(len(b.qp.sends), hca.WCWRFlushErr)
	})
	if got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

func TestRxAllocatesNothing(t *testing.T) {
	for name, m := range map[string][]byte{
		"unicast":   fromB(1400),
		"short":     fromB(20),
		"group":     msg(ipoib.EtherTypeIPv6, udp6("ff02::fb")),
		"slow path": msg(ipoib.EtherTypeARP, make([]byte, 56)),
		"ethertype": msg(0x8847, make([]byte, 60)),
		"malformed": msg(ipoib.EtherTypeIPv4, nil),
		"too long":  fromB(testMTU + 1),
		"hidden ND": msg(ipoib.EtherTypeIPv6, behind(ns6("fe80::1"), 60)),
	} {
		for _, n := range []int{1, hca.Batch} {
			b, round := newRxLoop(t, m, n)
			round() // the fake's own slices grow once
			if got := testing.AllocsPerRun(100, round); got != 0 {
				t.Errorf("%s, %d at a time: %v allocations", name, n, got)
			}
			checkAccounts(t, b.Counters())
		}
	}
}

func TestCuttingOneSegmentAllocatesNothing(t *testing.T) {
	ether, by := largeUDP(macX, 3000, 1000)[txEther:], route{headers: 42, mss: 1000}
	m := largeMsg(2500)
	buf, wc := received(gidB, gidA, m)
	got := testing.AllocsPerRun(100, func() {
		copy(buf[hca.GRHLen:], m)
		large := wc
		large.LRO = hca.LRO{Segments: 3, MSS: 1000}
		if len(by.first(ether)) != 1042 || !leaveLast(buf, &large) || large.ByteLen != hca.GRHLen+ipoib.HeaderLen+540 {
			t.Fatal("not cut")
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

func BenchmarkTx(b *testing.B) {
	for name, n := range map[string]int{"1": 1, "64": hca.Batch} {
		b.Run(name, func(b *testing.B) {
			tx := newTxLoop(b, toB(1400), n)
			b.ReportAllocs()
			for b.Loop() {
				tx.pump(b)
			}
			b.ReportMetric(float64(tx.tally[Sent].Load())/b.Elapsed().Seconds(), "frames/s")
		})
	}
}

func BenchmarkRx(b *testing.B) {
	for name, n := range map[string]int{"1": 1, "64": hca.Batch} {
		b.Run(name, func(b *testing.B) {
			rx, round := newRxLoop(b, fromB(1400), n)
			b.ReportAllocs()
			for b.Loop() {
				round()
			}
			b.ReportMetric(float64(rx.tally[Delivered].Load())/b.Elapsed().Seconds(), "frames/s")
		})
	}
}
