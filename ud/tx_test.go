package ud

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

func toB(n int) []byte { return frame(macB, macA, ipoib.EtherTypeIPv4, ipv4("10.0.0.2", n)) }

func TestTxSendsMessageInPlace(t *testing.T) {
	b := newTxBench(t, 128)
	payload := ipv4("10.0.0.2", 84)
	b.src.add(frame(macB, macA, ipoib.EtherTypeIPv4, payload))
	b.pump(t)

	if len(b.qp.sends) != 1 {
		t.Fatalf("%d sends, want 1", len(b.qp.sends))
	}
	s := b.qp.sends[0]
	if want := append([]byte{0x08, 0x00, 0x00, 0x00}, payload...); !bytes.Equal(b.qp.mr.at(s.sge), want) {
		t.Errorf("message\n%x, want\n%x", b.qp.mr.at(s.sge), want)
	}
	if s.to != destB || !s.signaled || s.id != 1<<32 || s.sge.Addr != 20 || s.sge.Length != 88 {
		t.Errorf("wrong send %+v", s)
	}
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 1, "tx_posts": 1, "tx_outstanding": 1})

	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 1, "tx_posts": 1, "tx_completions": 1, "tx_sent": 1})
	b.checkRing(t)
}

func TestTxSignalsEverySixteenthAndTheLast(t *testing.T) {
	b := newTxBench(t, 128)
	for range 40 {
		b.src.add(toB(100))
	}
	b.pump(t)
	var signaled []int
	for i, s := range b.qp.sends {
		if s.signaled {
			signaled = append(signaled, i+1)
		}
	}
	if want := []int{16, 32, 40}; !slices.Equal(signaled, want) || b.qp.sendCalls != 1 {
		t.Errorf("sends %v signaled in %d posts, want %v in one", signaled, b.qp.sendCalls, want)
	}
	b.qp.completeSends(20, hca.WCSuccess) // produces one completion, for the 16th
	b.pump(t)
	if got := counts(b.Counters()); got["tx_sent"] != 16 || got["tx_outstanding"] != 24 {
		t.Errorf("after 20 of 40 sends completed, the 16th signaled: %v", got)
	}
	b.qp.completeSends(20, hca.WCSuccess)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 40, "tx_posts": 40, "tx_completions": 40, "tx_sent": 40})
}

func TestTxLosesNothingToFullQueues(t *testing.T) {
	for name, depth := range map[string]int{"ring": 128, "send queue": 100} {
		t.Run(name, func(t *testing.T) {
			b := newTxBench(t, 128)
			b.qp.depth = depth // smaller than the value reported at Attach
			var got [][]byte
			b.qp.sendCQ.onWait = func(until time.Time) {
				if d := time.Until(until); d > stallWait {
					t.Errorf("waits %v, want %v at most", d, stallWait)
				}
				for _, m := range b.sent() {
					got = append(got, slices.Clone(m))
				}
				b.qp.completeSends(len(b.qp.sends), hca.WCSuccess)
			}
			const frames = 1000
			for i := range frames {
				b.src.add(toB(60 + i%1000))
			}
			for range 100 {
				b.pump(t)
				checkAccounts(t, b.Counters())
				b.checkRing(t)
			}
			b.qp.sendCQ.onWait(time.Now())
			b.pump(t)
			if len(got) != frames {
				t.Fatalf("%d messages of %d frames", len(got), frames)
			}
			for i, m := range got {
				if len(m) != 64+i%1000 {
					t.Fatalf("message %d has %d bytes: out of order", i, len(m))
				}
			}
			if c := counts(b.Counters()); c["tx_sent"] != frames || c["tx_stalls"] == 0 {
				t.Errorf("counters %v, want all %d frames sent, after stalls", c, frames)
			}
		})
	}
}

func TestTxStalledReadsNothingAndReturns(t *testing.T) {
	b := newTxBench(t, 128)
	for range 200 {
		b.src.add(toB(60))
	}
	for range 10 {
		b.pump(t) // nothing completes
	}
	c := counts(b.Counters())
	if c["tx_read"] != 128 || c["tx_stalls"] != 8 || b.qp.sendCQ.waits != 8 || b.qp.sendCQ.armed != 8 {
		t.Errorf("counters %v, %d waits, %d arms, want 128 frames read and 8 of the others", c, b.qp.sendCQ.waits, b.qp.sendCQ.armed)
	}
}

// A completion that arrives between the last poll and Arm must be processed
// without waiting.
func TestTxPollsOnceMoreAfterArming(t *testing.T) {
	b := newTxBench(t, 128)
	for range 200 {
		b.src.add(toB(60))
	}
	b.qp.sendCQ.onArm = func() { b.qp.completeSends(len(b.qp.sends), hca.WCSuccess) }
	for range 6 {
		b.pump(t)
	}
	if c := counts(b.Counters()); c["tx_read"] != 200 || b.qp.sendCQ.waits != 0 {
		t.Errorf("counters %v, %d waits, want 200 frames read without a wait", c, b.qp.sendCQ.waits)
	}
}

func TestTxCountsFailedSendsByStatus(t *testing.T) {
	b := newTxBench(t, 128)
	for range 10 {
		b.src.add(toB(100))
	}
	b.pump(t)
	// The fourth send fails, although it is unsignaled; the send queue flushes
	// the rest.
	failed := b.qp.sends[3]
	b.qp.completeSends(3, hca.WCSuccess)
	b.qp.completeSends(1, hca.WCLocProtErr)
	b.qp.completeSends(6, hca.WCWRFlushErr)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 10, "tx_posts": 10, "tx_completions": 10,
		"tx_sent": 3, "tx_wc_loc_prot_err": 1, "tx_wc_wr_flush_err": 6,
	})
	b.checkRing(t)
	if len(b.fails) != 7 {
		t.Fatalf("%d failures reported, want 7", len(b.fails))
	}
	if f := b.fails[0]; f.WC.ID != failed.id || f.SGE != failed.sge || f.Dest != destB || f.WC.Status != hca.WCLocProtErr {
		t.Errorf("failure %+v, want that of %+v", f, failed)
	}
}

func TestTxCountsUnknownStatus(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100))
	b.pump(t)
	b.qp.completeSends(1, 200)
	b.pump(t)
	if c := counts(b.Counters()); c["tx_wc_unknown_24"] != 1 {
		t.Errorf("counters %v, want tx_wc_unknown_24 1", c)
	}
}

func TestTxIgnoresForeignCompletions(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100), toB(100))
	b.pump(t)
	b.qp.sendCQ.add(
		hca.WC{ID: 0},                  // an earlier generation
		hca.WC{ID: 2 << 32},            // a later one
		hca.WC{ID: 1<<32 | 100},        // not posted
		hca.WC{ID: 1<<32 | 128},        // not a slot
		hca.WC{ID: 1<<32 | 0xffffffff}, // no slot
	)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 2, "tx_posts": 2, "tx_outstanding": 2, "tx_stale_completions": 2, "tx_foreign_completions": 3,
	})
	b.qp.completeSends(2, hca.WCSuccess)
	b.qp.sendCQ.add(b.qp.sendCQ.wcs...) // the same completion again
	b.pump(t)
	if c := counts(b.Counters()); c["tx_sent"] != 2 || c["tx_foreign_completions"] != 4 {
		t.Errorf("after a duplicate completion: %v", c)
	}
	b.checkRing(t)
}

// If the QP refuses a request as invalid, only that request is dropped, whether it is the
// first, the last or in the middle of a batch, and even if all but one are refused.
func TestTxDropsARefusedRequestAlone(t *testing.T) {
	for _, refused := range [][]int{{0}, {9}, {4}, {0, 4, 5, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8}} {
		b := newTxBench(t, 128)
		for i := range 10 {
			b.src.add(toB(100 + i))
		}
		b.qp.invalid = func(w *hca.SendWR) bool {
			return slices.Contains(refused, int(w.SGList[0].Length)-ipoib.HeaderLen-100)
		}
		if err := b.Pump(); err != nil {
			t.Fatalf("refused %v: %v", refused, err)
		}
		n := uint64(len(refused))
		checkCounts(t, b.Counters(), map[string]uint64{
			"tx_read": 10, "tx_posts": 10 - n, "tx_outstanding": 10 - n, "tx_drop_post_refused": n,
		})
		if p := b.Progress(); p.Refused != n || p.Waiting != int(10-n) {
			t.Errorf("refused %v: %+v, want %d refused and the rest waiting", refused, p, n)
		}
		b.checkRing(t)
	}
}

// When the device fails, Pump returns the error and drops the frames that it has not
// posted.
func TestTxEndsWithTheDevice(t *testing.T) {
	b := newTxBench(t, 128)
	for range 10 {
		b.src.add(toB(100))
	}
	b.qp.refuse, b.qp.refuseAfter = &hca.VerbError{Verb: "post_send", Err: hca.ErrIO}, 4
	if err := b.Pump(); !errors.Is(err, hca.ErrIO) {
		t.Fatalf("error %v, want ErrIO", err)
	}
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 10, "tx_posts": 4, "tx_outstanding": 4, "tx_drop_post_refused": 6,
	})
	b.checkRing(t)
}

func TestTxReturnsErrorsOfCQAndSource(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.err = hca.ErrClosed
	b.src.add(toB(100))
	if err := b.Pump(); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("source's error: %v, want ErrClosed", err)
	}
	if len(b.qp.sends) != 1 {
		t.Errorf("%d sends of a frame that was read together with an error", len(b.qp.sends))
	}
	b.qp.sendCQ.err = hca.ErrCQ
	if err := b.Pump(); !errors.Is(err, hca.ErrCQ) {
		t.Errorf("CQ's error: %v, want ErrCQ", err)
	}
	if err := b.Drain(time.Now().Add(time.Hour)); !errors.Is(err, hca.ErrCQ) {
		t.Errorf("CQ's error while draining: %v", err)
	}
}

func TestR10R20TxTakesEverythingBack(t *testing.T) {
	b := newTxBench(t, 128)
	b.qp.refuse, b.qp.refuseAfter = hca.ErrQueueFull, 6
	for range 10 {
		b.src.add(toB(100))
	}
	b.pump(t) // 6 posted, 4 described
	if !b.Inject(destAll, msg(ipoib.EtherTypeARP, make([]byte, 56))) {
		t.Fatal("inject refused")
	}
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 10, "tx_injected": 1, "tx_posts": 6, "tx_outstanding": 6, "tx_queued": 5,
	})
	late := b.qp.sends[5]
	if n := b.Detach(); n != 11 {
		t.Errorf("detach dropped %d, want 11", n)
	}
	if n := b.Detach(); n != 0 {
		t.Errorf("the second detach dropped %d", n)
	}
	want := map[string]uint64{"tx_read": 10, "tx_injected": 1, "tx_posts": 6, "tx_taken_back": 6, "tx_drop_reset": 11}
	checkCounts(t, b.Counters(), want)
	if b.Inject(destAll, msg(ipoib.EtherTypeARP, make([]byte, 56))) {
		t.Error("inject accepted while detached")
	}
	if err := b.Pump(); !errors.Is(err, ErrDetached) {
		t.Errorf("pump while detached: %v", err)
	}
	if err := b.Drain(time.Now().Add(time.Hour)); !errors.Is(err, ErrDetached) {
		t.Errorf("drain while detached: %v", err)
	}

	// Traffic continues through the next QP; a late completion of the first QP
	// is ignored, although its slot is posted again.
	b.qp = &fakeQP{mr: b.qp.mr, sendCQ: b.qp.sendCQ, depth: 128}
	b.attach(t, 2)
	for range 10 {
		b.src.add(toB(100))
	}
	b.pump(t)
	b.qp.sendCQ.add(hca.WC{ID: late.id, Status: hca.WCWRFlushErr})
	b.pump(t)
	c := counts(b.Counters())
	if c["tx_stale_completions"] != 1 || c["tx_outstanding"] != 10 || c["tx_wc_wr_flush_err"] != 0 || c["tx_drop_no_qp"] != 1 {
		t.Errorf("counters %v, want one stale completion and 10 sends outstanding", c)
	}
	checkAccounts(t, b.Counters())
}

func TestTxAttachChecks(t *testing.T) {
	b := newTxBench(t, 128)
	if err := b.Attach(b.qp, b.qp.sendCQ, b.qp.mr, 0, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("attach twice: %v, want ErrInvalid", err)
	}
	b.Detach()
	small := &fakeMR{b.qp.mr.mem[1:]}
	if err := b.Attach(b.qp, b.qp.sendCQ, small, 0, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("memory too small: %v", err)
	}
	b.qp.depth = 127
	if err := b.Attach(b.qp, b.qp.sendCQ, b.qp.mr, 0, 2); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("send queue too small: %v", err)
	}
	if err := b.Pump(); !errors.Is(err, ErrDetached) {
		t.Errorf("pump after refused attaches: %v", err)
	}
	b.qp.depth = 128
	b.attach(t, 2)
}

func TestTxConfigChecks(t *testing.T) {
	good := TxConfig{Slots: 128, MaxMTU: 4092, MTU: 2044, Source: &fakeSource{}, SlowPath: &fakeSlow{}, Peers: &Snapshot{}}
	if _, err := NewTx(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*TxConfig){
		"slots":     func(c *TxConfig) { c.Slots = 127 },
		"no MTU":    func(c *TxConfig) { c.MTU = 0 },
		"MTU":       func(c *TxConfig) { c.MTU = 4093 },
		"source":    func(c *TxConfig) { c.Source = nil },
		"slow path": func(c *TxConfig) { c.SlowPath = nil },
		"peers":     func(c *TxConfig) { c.Peers = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewTx(cfg); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestTxInject(t *testing.T) {
	b := newTxBench(t, 128)
	arp := msg(ipoib.EtherTypeARP, make([]byte, 56))
	for i := range injectSlots {
		m := slices.Clone(arp)
		m[10] = byte(i)
		if !b.Inject(destAll, m) {
			t.Fatalf("message %d refused", i)
		}
	}
	if b.src.wakes.Load() != injectSlots {
		t.Errorf("%d wake-ups, want %d", b.src.wakes.Load(), injectSlots)
	}
	if b.Inject(destAll, arp) || b.Inject(destAll, arp[:3]) || b.Inject(destAll, make([]byte, testMTU+5)) {
		t.Error("Inject accepted a message beyond a full queue, a runt or too long a message")
	}
	b.qp.auto = true
	for range 5 {
		b.pump(t)
	}
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_injected": injectSlots + 3, "tx_posts": injectSlots, "tx_completions": injectSlots, "tx_sent": injectSlots,
		"tx_drop_inject_full": 1, "tx_drop_runt": 1, "tx_drop_too_long": 1,
	})
}

func TestTxSendsInjectedMessagesFirst(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100))
	long := msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.9", testMTU))
	b.Inject(destAll, msg(ipoib.EtherTypeARP, make([]byte, 56)))
	b.Inject(destB, long)
	b.pump(t)
	got := b.sent()
	if len(got) != 3 || len(got[0]) != 60 || !bytes.Equal(got[1], long) || len(got[2]) != 104 {
		t.Fatalf("%d messages, want the injected one, the long one and a frame", len(got))
	}
	if b.qp.sends[0].to != destAll || b.qp.sends[1].to != destB {
		t.Error("wrong destinations")
	}
}

// Each message of several goroutines arrives once, while other goroutines read
// every counter.
func TestTxInjectsFromManyGoroutines(t *testing.T) {
	b := newTxBench(t, 128)
	b.qp.auto = true
	const senders, each = 4, 1000
	var taken atomic.Int64
	var others sync.WaitGroup
	for range senders {
		others.Go(func() {
			for range each {
				if b.Inject(destAll, msg(ipoib.EtherTypeARP, make([]byte, 56))) {
					taken.Add(1)
				}
				b.snap.Publish(newPeers(b.Epoch() + 1))
				_, _ = b.Counters(), b.Outstanding()
			}
		})
	}
	done := make(chan struct{})
	go func() { others.Wait(); close(done) }()
	for running := true; running || b.queued() > 0; {
		select {
		case <-done:
			running = false
		default:
		}
		b.pump(t)
	}
	b.pump(t)
	b.nudge.Stop()
	checkAccounts(t, b.Counters())
	c := counts(b.Counters())
	if c["tx_injected"] != senders*each || c["tx_sent"] != uint64(taken.Load()) || taken.Load() == 0 {
		t.Errorf("%d messages accepted, counters %v", taken.Load(), c)
	}
}

func TestTxHandsEthernetFrameToSlowPath(t *testing.T) {
	b := newTxBench(t, 128)
	f := frame(ipoib.Broadcast, macA, ipoib.EtherTypeARP, make([]byte, 28))
	b.src.add(f)
	b.pump(t)
	if len(b.slow.frames) != 1 || !bytes.Equal(b.slow.frames[0], f[vnet.HeaderLen:]) {
		t.Errorf("slow path received %x", b.slow.frames)
	}
	b.slow.full = true
	b.src.add(f)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 2, "tx_slow_path": 1, "tx_drop_slow_path_full": 1})
	b.checkRing(t)
}

func TestTxFollowsMTU(t *testing.T) {
	b := newTxBench(t, 128)
	b.SetMTU(100, testMTU)
	b.src.add(toB(100), toB(101))
	b.pump(t)
	b.SetMTU(1<<20, 1<<20) // limited to MaxMTU
	b.src.add(toB(testMTU), toB(testMTU+1))
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 4, "tx_posts": 2, "tx_outstanding": 2, "tx_drop_too_long": 2,
	})
}

func TestTxDropsWithoutSnapshot(t *testing.T) {
	b := newTxBench(t, 128)
	b.cfg.Peers = &Snapshot{}
	b.src.add(toB(100))
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 1, "tx_drop_no_peers": 1})
}

func TestTxDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTxBench(t, 128)
		for range 100 {
			b.src.add(toB(100))
		}
		b.pump(t)
		b.pump(t)
		b.qp.sendCQ.onWait = func(time.Time) {
			time.Sleep(time.Second)
			b.qp.completeSends(min(10, len(b.qp.sends)), hca.WCWRFlushErr)
		}
		if err := b.Drain(time.Now().Add(5500 * time.Millisecond)); err != nil || b.Outstanding() != 40 {
			t.Errorf("Drain within 5 s: %v, %d outstanding", err, b.Outstanding())
		}
		if err := b.Drain(time.Now().Add(time.Hour)); err != nil || b.Outstanding() != 0 {
			t.Errorf("Drain after the completions: %v, %d outstanding", err, b.Outstanding())
		}
		checkAccounts(t, b.Counters())
		b.Detach()
	})
}

// While the host is silent, the blocked read is woken as long as sends are
// outstanding, and no longer.
func TestTxWakesReadToReap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTxBench(t, 128)
		b.src.add(toB(100))
		b.pump(t)
		b.pump(t) // reads with one send outstanding
		time.Sleep(reapEvery + time.Millisecond)
		synctest.Wait()
		if b.src.wakes.Load() != 1 {
			t.Fatalf("%d wake-ups with a send outstanding", b.src.wakes.Load())
		}
		b.qp.completeSends(1, hca.WCSuccess)
		b.pump(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.src.wakes.Load() != 1 || b.Outstanding() != 0 {
			t.Errorf("%d wake-ups, %d outstanding", b.src.wakes.Load(), b.Outstanding())
		}
	})
}

// Discard drops the frames that it reads, with or without a queue pair.
func TestR27TxDiscards(t *testing.T) {
	b := newTxBench(t, 128)
	for range 2 {
		b.src.add(toB(100), toB(testMTU))
		if err := b.Discard(); err != nil {
			t.Fatal(err)
		}
		b.Detach()
	}
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 4, "tx_drop_held": 4})
	b.src.err = hca.ErrClosed
	if err := b.Discard(); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("source's error: %v, want ErrClosed", err)
	}
}
