package ud

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// anyFrame draws frames that end with every Reason.
func anyFrame(rt *rapid.T) []byte {
	mac := rapid.SampledFrom([]ipoib.MAC{macA, macB, macX, ipoib.Broadcast, {1, 0, 0x5e, 1, 2, 3}})
	typ := rapid.SampledFrom([]ipoib.EtherType{0x0800, 0x0806, 0x8035, 0x86dd, 0x8100})
	payload := rapid.SampledFrom([][]byte{
		nil, ipv4("10.0.0.1", 60), ipv4("239.1.2.3", 60), udp6("ff02::fb"), ns6("ff02::1"), make([]byte, testMTU+1),
	})
	f := frame(mac.Draw(rt, "dst"), mac.Draw(rt, "src"), typ.Draw(rt, "type"), payload.Draw(rt, "payload"))
	f[0] = rapid.SampledFrom([]byte{0, 0, 0, 1, 2}).Draw(rt, "virtio flags")
	return f[:min(len(f), rapid.SampledFrom([]int{9000, 9000, 24, 23, 10, 0}).Draw(rt, "cut"))]
}

var anyStatus = rapid.SampledFrom([]hca.WCStatus{
	hca.WCSuccess, hca.WCSuccess, hca.WCLocProtErr, hca.WCWRFlushErr, hca.NumWCStatus, 255,
})

// anyID draws the work request ID of an unknown or a late completion.
func anyID(rt *rapid.T, gen uint32) uint64 {
	return rapid.Uint64Range(0, uint64(gen)<<32|0xffff).Draw(rt, "id")
}

// refusals are the possible results of a post.
var refusals = rapid.SampledFrom([]error{nil, nil, hca.ErrQueueFull, hca.ErrInvalid, hca.ErrIO})

// TestR10TxAccounts applies events to a Tx in random order and checks after each
// that the counters and the ring's records are consistent.
func TestR10TxAccounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b, gen := newTxBench(t, 128), uint32(1)
		rt.Repeat(map[string]func(*rapid.T){
			"frame": func(rt *rapid.T) { b.src.add(anyFrame(rt)) },
			"many": func(rt *rapid.T) {
				f := anyFrame(rt)
				for range rapid.IntRange(1, 200).Draw(rt, "n") {
					b.src.add(f)
				}
			},
			"inject": func(rt *rapid.T) {
				n := rapid.IntRange(1, 300).Draw(rt, "n")
				for range n {
					b.Inject(destAll, make([]byte, rapid.SampledFrom([]int{3, 4, 60, testMTU + 5}).Draw(rt, "len")))
				}
			},
			"pump": func(rt *rapid.T) {
				if err := b.Pump(); err != nil && !errors.Is(err, ErrDetached) && b.qp.refuse == nil && b.qp.sendCQ.err == nil {
					rt.Fatal(err)
				}
			},
			"complete": func(rt *rapid.T) {
				n := rapid.IntRange(0, len(b.qp.sends)).Draw(rt, "n")
				b.qp.completeSends(n, anyStatus.Draw(rt, "status"))
			},
			"strange completion": func(rt *rapid.T) {
				b.qp.sendCQ.add(hca.WC{ID: anyID(rt, gen), Status: anyStatus.Draw(rt, "status")})
			},
			"refuse": func(rt *rapid.T) {
				b.qp.refuse, b.qp.refuseAfter = refusals.Draw(rt, "error"), rapid.IntRange(0, 64).Draw(rt, "after")
			},
			"slow path": func(rt *rapid.T) { b.slow.full = !b.slow.full },
			"device fails": func(*rapid.T) {
				if b.qp.sendCQ.err = errFailed; b.Pump() == nil || b.Outstanding() != 0 {
					rt.Fatalf("%d sends posted on a failed device", b.Outstanding())
				}
			},
			"detach": func(*rapid.T) { b.Detach() },
			"attach": func(*rapid.T) {
				b.Detach()
				gen++
				b.qp.sends, b.qp.sendCQ.err = nil, nil
				b.attach(t, gen)
			},
			"": func(rt *rapid.T) {
				checkAccounts(rt, b.Counters())
				b.checkRing(rt)
			},
		})
		b.Detach()
	})
}

// TestR10RxAccounts is TestR10TxAccounts for an Rx.
func TestR10RxAccounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b, gen := newRxBench(t, 64), uint32(1)
		rt.Repeat(map[string]func(*rapid.T){
			"receive": func(rt *rapid.T) {
				f := anyFrame(rt)
				for n := rapid.IntRange(1, 70).Draw(rt, "n"); n > 0 && len(b.qp.recvs) > 0; n-- {
					b.qp.receive(f[min(len(f), txMessage):], gidA)
				}
			},
			"receive large": func(rt *rapid.T) {
				m := [][]byte{largeMsg(3000), largeMsg(1), fromB(100), msg(ipoib.EtherTypeARP, make([]byte, 56))}[rapid.IntRange(0, 3).Draw(rt, "kind")]
				for n := rapid.IntRange(1, 70).Draw(rt, "n"); n > 0 && len(b.qp.recvs) > 0; n-- {
					b.qp.receiveLarge(m, rapid.IntRange(2, 64).Draw(rt, "segments"), rapid.IntRange(1, 3000).Draw(rt, "mss"))
				}
			},
			"fail": func(rt *rapid.T) {
				if len(b.qp.recvs) > 0 {
					b.qp.completeRecv(hca.WC{Status: anyStatus.Draw(rt, "status"), ByteLen: rapid.Uint32().Draw(rt, "len")})
				}
			},
			"strange completion": func(rt *rapid.T) {
				b.qp.recvCQ.add(hca.WC{ID: anyID(rt, gen), Status: anyStatus.Draw(rt, "status")})
			},
			"pump": func(rt *rapid.T) {
				err := b.Pump(time.Time{})
				if err != nil && !errors.Is(err, ErrDetached) && b.qp.refuse == nil && b.sink.err == nil && b.qp.recvCQ.err == nil {
					rt.Fatal(err)
				}
			},
			"refuse": func(rt *rapid.T) {
				b.qp.refuse, b.qp.refuseAfter = refusals.Draw(rt, "error"), rapid.IntRange(0, 63).Draw(rt, "after")
			},
			"sink": func(rt *rapid.T) {
				b.sink.accept, b.sink.err = rapid.IntRange(-1, 10).Draw(rt, "accept"), refusals.Draw(rt, "error")
			},
			"slow path": func(rt *rapid.T) { b.slow.full = !b.slow.full },
			"refill": func(rt *rapid.T) {
				if err := b.Refill(); err != nil && !errors.Is(err, ErrDetached) && b.qp.refuse == nil {
					rt.Fatal(err)
				}
			},
			"device fails": func(*rapid.T) {
				if b.qp.recvCQ.err = errFailed; b.Pump(time.Time{}) == nil || b.Outstanding() != 0 {
					rt.Fatalf("%d receives posted on a failed device", b.Outstanding())
				}
			},
			"detach": func(*rapid.T) { b.Detach() },
			"attach": func(*rapid.T) {
				b.Detach()
				gen++
				b.qp.recvs, b.qp.refuse, b.qp.recvCQ.err = nil, nil, nil
				b.attach(t, gen)
			},
			"": func(rt *rapid.T) {
				checkAccounts(rt, b.Counters())
				b.checkRing(rt)
			},
		})
		b.qp.recvs, b.qp.refuse, b.sink.err, b.qp.recvCQ.err = nil, nil, nil, nil
		b.Detach()
		b.attach(t, gen+1)
		if b.Outstanding() != 64 {
			rt.Fatalf("%d of 64 buffers posted at the end", b.Outstanding())
		}
	})
}
