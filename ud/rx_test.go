package ud

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

const rxSlots = 128

// fromB returns a message from B to us.
func fromB(n int) []byte { return msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.1", n)) }

// idle returns the counters of an Rx whose buffers are all posted after n
// completions.
func idle(n uint64, more map[string]uint64) map[string]uint64 {
	m := map[string]uint64{"rx_posts": rxSlots + n, "rx_outstanding": rxSlots}
	if n > 0 {
		m["rx_completions"] = n
	}
	for k, v := range more {
		m[k] = v
	}
	return m
}

func TestRxDeliversFrameInPlace(t *testing.T) {
	b := newRxBench(t, rxSlots)
	slot := b.qp.mr.at(b.qp.recvs[0].sge)
	var written []byte
	b.cfg.Sink = sinkFunc(func(frame []byte) { written = frame })
	packet := ipv4("10.0.0.1", 84)
	b.qp.receive(msg(ipoib.EtherTypeIPv4, packet), gidA)
	b.pump(t)

	want := append([]byte{
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // virtio
		0x02, 0, 0, 0, 0, 0x0a, 0x02, 0, 0, 0, 0, 0x0b, 0x08, 0x00,
	}, packet...)
	if !bytes.Equal(written, want) {
		t.Errorf("frame\n%x, want\n%x", written, want)
	}
	if &written[0] != &slot[20] {
		t.Error("the frame was copied out of its slot")
	}
	checkCounts(t, b.Counters(), idle(1, map[string]uint64{"rx_received": 1, "rx_delivered": 1}))
	b.checkRing(t)
}

// sinkFunc is a sink that accepts the frames that it is called with; each is one slice.
type sinkFunc func(frame []byte)

func (f sinkFunc) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	for i, frame := range frames {
		f(frame[0])
		accepted[i] = true
	}
	return len(frames), nil
}

func TestRxPadsToEthernetMinimum(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for i := range b.qp.mr.mem {
		b.qp.mr.mem[i] = 0xee
	}
	for _, n := range []int{20, 45, 46, 47} {
		b.qp.receive(fromB(n), gidA)
	}
	b.pump(t)
	for i, n := range []int{60, 60, 60, 61} {
		f := b.sink.frames[i][10:]
		if len(f) != n || bytes.IndexByte(f, 0xee) >= 0 {
			t.Errorf("frame %d: %x, want it padded with zeros", i, f)
		}
	}
}

func TestRxReportsVerifiedChecksums(t *testing.T) {
	b := newRxBench(t, rxSlots)
	m := fromB(100)
	b.qp.receiveWC(m, gidA, hca.WC{Flags: hca.WCFlagGRH | hca.WCFlagIPCsumOK, SrcQPN: qpnB, ByteLen: uint32(40 + len(m))})
	b.pump(t)
	if want := []byte{2, 0, 0, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(b.sink.frames[0][:10], want) {
		t.Errorf("virtio header %x, want %x (DATA_VALID)", b.sink.frames[0][:10], want)
	}
}

func TestRxHandsMessageToSlowPath(t *testing.T) {
	b := newRxBench(t, rxSlots)
	group := hca.GID{0xff, 0x12}
	arp, ns := msg(ipoib.EtherTypeARP, make([]byte, 56)), msg(ipoib.EtherTypeIPv6, ns6("ff02::1:ff00:1"))
	b.qp.receive(arp, group)
	b.qp.receive(ns, gidA)
	b.pump(t)
	if len(b.slow.msgs) != 2 || !bytes.Equal(b.slow.msgs[0], arp) || !bytes.Equal(b.slow.msgs[1], ns) {
		t.Fatalf("slow path received %x", b.slow.msgs)
	}
	if b.slow.from[0] != (Sender{hca.UDSource{GID: gidB, QPN: qpnB}, true}) || b.slow.from[1] != (Sender{hca.UDSource{GID: gidB, QPN: qpnB}, false}) {
		t.Errorf("senders %+v, want B by multicast, then by unicast", b.slow.from)
	}
	b.slow.full = true
	b.qp.receive(arp, group)
	b.pump(t)
	checkCounts(t, b.Counters(), idle(3, map[string]uint64{
		"rx_received": 3, "rx_slow_path": 2, "rx_drop_slow_path_full": 1,
	}))
}

func TestRxCountsFramesThatTheSinkRefuses(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for range 5 {
		b.qp.receive(fromB(100), gidA)
	}
	b.sink.accept, b.sink.err = 3, hca.ErrClosed
	if err := b.Pump(time.Time{}); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	checkCounts(t, b.Counters(), idle(5, map[string]uint64{
		"rx_received": 5, "rx_delivered": 3, "rx_drop_sink_refused": 2,
	}))
}

func TestRxPostsEveryBufferAtOnce(t *testing.T) {
	b := newRxBench(t, rxSlots)
	if len(b.qp.recvs) != rxSlots || b.Outstanding() != rxSlots {
		t.Fatalf("%d receives posted, want all", len(b.qp.recvs))
	}
	seen := map[uint64]bool{}
	for i, r := range b.qp.recvs {
		if r.sge.Length < 40+4+4096 || seen[r.sge.Addr] || r.id != 1<<32|uint64(i) {
			t.Fatalf("invalid receive %d: %+v", i, r)
		}
		seen[r.sge.Addr] = true
	}
}

// Neither failed receives nor posts that the queue refuses may shrink the ring. After a failed receive nothing is posted at
// once, because the QP may be in ERR.
func TestRxRepostsFailedReceives(t *testing.T) {
	b := newRxBench(t, rxSlots)
	failed := b.qp.recvs[0]
	b.qp.completeRecv(hca.WC{Status: hca.WCLocLenErr})
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	if b.Outstanding() != rxSlots-2 {
		t.Errorf("%d posted after a failed receive, want %d", b.Outstanding(), rxSlots-2)
	}
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	checkCounts(t, b.Counters(), idle(3, map[string]uint64{
		"rx_received": 2, "rx_delivered": 2, "rx_wc_loc_len_err": 1,
	}))
	if len(b.fails) != 1 || b.fails[0].SGE != failed.sge || b.fails[0].WC.ID != failed.id {
		t.Errorf("failures %+v, want one, of the failed receive", b.fails)
	}
}

// If every receive fails at once, they are posted again: no message would arrive that could cause it.
func TestRxRepostsWhenAllReceivesFail(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for len(b.qp.recvs) > 0 {
		b.qp.completeRecv(hca.WC{Status: hca.WCLocProtErr})
	}
	for len(b.qp.recvCQ.wcs) > 0 {
		b.pump(t)
	}
	if b.Outstanding() != rxSlots {
		t.Errorf("%d posted, want all", b.Outstanding())
	}
}

func TestRxRetriesPostsAfterAFullQueue(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for range 10 {
		b.qp.receive(fromB(100), gidA)
	}
	b.qp.refuse, b.qp.refuseAfter = hca.ErrQueueFull, 3
	b.pump(t)
	if b.Outstanding() != rxSlots-7 {
		t.Errorf("%d posted, want %d", b.Outstanding(), rxSlots-7)
	}
	b.checkRing(t)
	b.qp.refuse = nil
	b.pump(t)
	if b.Outstanding() != rxSlots {
		t.Errorf("%d posted at the end", b.Outstanding())
	}
	b.checkRing(t)
}

func TestRxReturnsErrorOfPostAndPostsLater(t *testing.T) {
	b := newRxBench(t, rxSlots)
	b.qp.receive(fromB(100), gidA)
	b.qp.refuse = hca.ErrIO
	if err := b.Pump(time.Time{}); !errors.Is(err, hca.ErrIO) {
		t.Errorf("error %v, want ErrIO", err)
	}
	if len(b.sink.frames) != 1 {
		t.Error("the frame was lost")
	}
	b.qp.refuse = nil
	b.pump(t)
	if b.Outstanding() != rxSlots {
		t.Errorf("%d posted at the end", b.Outstanding())
	}
}

// A QP in ERR flushes posted buffers, so posting them again would loop forever.
func TestRxDoesNotRepostFlushedBuffers(t *testing.T) {
	b := newRxBench(t, rxSlots)
	b.qp.completeRecv(hca.WC{Status: hca.WCLocLenErr})
	for len(b.qp.recvs) > 0 {
		b.qp.completeRecv(hca.WC{Status: hca.WCWRFlushErr})
	}
	if err := b.Drain(time.Now().Add(time.Second)); err != nil || b.Outstanding() != 0 {
		t.Fatalf("drain: %v, %d posted, want none", err, b.Outstanding())
	}
	b.checkRing(t)
	checkCounts(t, b.Counters(), map[string]uint64{
		"rx_posts": rxSlots, "rx_completions": rxSlots, "rx_wc_loc_len_err": 1, "rx_wc_wr_flush_err": rxSlots - 1,
	})
	if err := b.Refill(); err != nil || len(b.qp.recvs) != rxSlots {
		t.Errorf("refill: %v, %d posted, want all", err, len(b.qp.recvs))
	}
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	if b.Outstanding() != rxSlots || len(b.sink.frames) != 1 {
		t.Errorf("after the refill: %d posted, %d frames", b.Outstanding(), len(b.sink.frames))
	}
}

func TestR20RxIgnoresForeignCompletions(t *testing.T) {
	b := newRxBench(t, rxSlots)
	wc := hca.WC{Flags: hca.WCFlagGRH, ByteLen: 100}
	for _, id := range []uint64{5, 2<<32 | 5, 1<<32 | rxSlots, 1<<32 | 0xffffffff} {
		wc.ID = id
		b.qp.recvCQ.add(wc)
	}
	b.pump(t)
	checkCounts(t, b.Counters(), idle(0, map[string]uint64{"rx_stale_completions": 2, "rx_foreign_completions": 2}))
	if n := b.Detach(); n != rxSlots {
		t.Errorf("detach took back %d", n)
	}
	late := b.qp.recvs[0]
	b.qp.recvs = nil
	b.attach(t, 2)
	wc.ID = late.id
	b.qp.recvCQ.add(wc)
	b.pump(t)
	if c := counts(b.Counters()); c["rx_stale_completions"] != 3 || c["rx_received"] != 0 || c["rx_taken_back"] != rxSlots {
		t.Errorf("counters %v, want 3 stale completions, none received, all taken back", c)
	}
	b.checkRing(t)
}

// When a batch of completions arrives twice, the slots of the second batch are
// no longer posted.
func TestRxIgnoresDuplicateCompletions(t *testing.T) {
	b := newRxBench(t, rxSlots)
	b.qp.receive(fromB(100), gidA)
	b.qp.recvCQ.add(b.qp.recvCQ.wcs...)
	b.pump(t)
	checkCounts(t, b.Counters(), idle(1, map[string]uint64{
		"rx_received": 1, "rx_delivered": 1, "rx_foreign_completions": 1,
	}))
	b.checkRing(t)
}

func TestRxFollowsTheContractOfWait(t *testing.T) {
	b := newRxBench(t, rxSlots)
	until := time.Now().Add(time.Hour)
	b.qp.recvCQ.onWait = func(got time.Time) {
		if !got.Equal(until) || b.qp.recvCQ.armed != 1 {
			t.Errorf("waits until %v, armed %d times", got, b.qp.recvCQ.armed)
		}
		b.qp.receive(fromB(100), gidA)
	}
	if err := b.Pump(until); err != nil {
		t.Fatal(err)
	}
	if len(b.sink.frames) != 1 || b.qp.recvCQ.waits != 1 {
		t.Errorf("%d frames after %d waits", len(b.sink.frames), b.qp.recvCQ.waits)
	}
	// A message that arrives while the CQ is being armed is processed without
	// waiting.
	b.qp.recvCQ.onArm = func() { b.qp.receive(fromB(100), gidA) }
	b.pump(t)
	if len(b.sink.frames) != 2 || b.qp.recvCQ.waits != 1 {
		t.Errorf("%d frames after %d waits", len(b.sink.frames), b.qp.recvCQ.waits)
	}
	// A message that has already arrived is processed without arming the CQ.
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	if len(b.sink.frames) != 3 || b.qp.recvCQ.armed != 2 {
		t.Errorf("%d frames, armed %d times", len(b.sink.frames), b.qp.recvCQ.armed)
	}
}

func TestRxReturnsErrorOfCQ(t *testing.T) {
	b := newRxBench(t, rxSlots)
	b.qp.recvCQ.err = hca.ErrCQ
	if err := b.Pump(time.Time{}); !errors.Is(err, hca.ErrCQ) {
		t.Errorf("error %v, want ErrCQ", err)
	}
}

func TestRxDeliversBatchesInOrder(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for i := range rxSlots {
		b.qp.receive(fromB(100+i), gidA)
	}
	b.pump(t)
	if len(b.sink.frames) != hca.Batch || b.Outstanding() != rxSlots {
		t.Errorf("%d frames in the first Pump, %d posted", len(b.sink.frames), b.Outstanding())
	}
	b.pump(t)
	if !slices.IsSortedFunc(b.sink.frames, func(a, b []byte) int { return len(a) - len(b) }) || len(b.sink.frames) != rxSlots {
		t.Errorf("%d frames, not in order", len(b.sink.frames))
	}
}

func TestRxAttachChecks(t *testing.T) {
	b := newRxBench(t, rxSlots)
	if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("attach twice: %v, want ErrInvalid", err)
	}
	if n := b.Detach(); n != rxSlots {
		t.Errorf("detach took back %d", n)
	}
	if n := b.Detach(); n != 0 {
		t.Errorf("the second detach took back %d", n)
	}
	if err := b.Pump(time.Time{}); !errors.Is(err, ErrDetached) {
		t.Errorf("pump while detached: %v", err)
	}
	if err := b.Refill(); !errors.Is(err, ErrDetached) {
		t.Errorf("refill while detached: %v", err)
	}
	b.qp.recvs = nil
	if err := b.Attach(b.qp, b.qp.recvCQ, &fakeMR{b.qp.mr.mem[1:]}, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("memory too small: %v", err)
	}
	b.qp.depth = rxSlots - 1
	if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("receive queue too small: %v", err)
	}
	b.qp.depth = rxSlots
	b.qp.refuse, b.qp.refuseAfter = hca.ErrInvalid, 63
	if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, 2); !errors.Is(err, hca.ErrInvalid) || b.Outstanding() != 0 {
		t.Errorf("refused post: %v, %d posted", err, b.Outstanding())
	}
	b.qp.refuse, b.qp.recvs = nil, nil
	b.attach(t, 3)
	b.checkRing(t)
	checkAccounts(t, b.Counters())
}

func TestRxConfigChecks(t *testing.T) {
	good := RxConfig{Slots: 64, PortMTU: 4096, MTU: 2044, Sink: &fakeSink{}, SlowPath: &fakeSlow{}, Peers: &Snapshot{}}
	if _, err := NewRx(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*RxConfig){
		"slots":     func(c *RxConfig) { c.Slots = 63 },
		"port MTU":  func(c *RxConfig) { c.PortMTU = 1500 },
		"MTU":       func(c *RxConfig) { c.MTU = 0 },
		"sink":      func(c *RxConfig) { c.Sink = nil },
		"slow path": func(c *RxConfig) { c.SlowPath = nil },
		"peers":     func(c *RxConfig) { c.Peers = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewRx(cfg); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestStrides(t *testing.T) {
	for _, mtu := range []int{252, 1020, 1444, 2044, 4092} {
		if s := TxStride(mtu, 0); s%slotAlign != 0 || s < 10+14+mtu+1 {
			t.Errorf("TX stride of MTU %d: %d", mtu, s)
		}
	}
	for _, mtu := range []hca.MTU{256, 512, 1024, 2048, 4096} {
		if s := RxStride(mtu, false); s%slotAlign != 0 || s < 40+4+int(mtu) || s < 20+10+60 {
			t.Errorf("RX stride of MTU %d: %d", mtu, s)
		}
	}
}
