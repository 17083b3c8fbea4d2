package ud

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/scripts/bench/bound"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// newLargeTxLoop is newTxLoop for frames that the device cuts into segments.
func newLargeTxLoop(t testing.TB, f []byte, n int) *txBench {
	const slots = 128
	b := newTxBench(t, slots)
	b.Detach()
	b.cfg.Source, b.qp.auto, b.maxTSO = &repeater{f, n}, true, 1<<16
	b.qp.mr = &fakeMR{make([]byte, slots*TxStride(b.cfg.MaxMTU, b.maxTSO))}
	b.attach(t, 2)
	return b
}

// tcpSegments returns n messages that are consecutive segments of a flow.
func tcpSegments(n, size int) (out [][]byte) {
	for i := range n {
		p := ipv4("10.0.0.1", 40+size)
		ip, tcp := p[:20], p[20:]
		ip[6], ip[9] = 0x40, 6
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip, 0))
		clear(tcp[:20])
		binary.BigEndian.PutUint32(tcp[4:], uint32(i*size))
		tcp[12], tcp[13], tcp[14] = 5<<4, 0x10, 0xff
		binary.BigEndian.PutUint16(tcp[vnet.CsumOffsetTCP:], ^checksum.Sum(tcp, checksum.Pseudo(ip[12:], 6, len(tcp))))
		out = append(out, msg(ipoib.EtherTypeIPv4, p))
	}
	return out
}

// newRxTrainLoop is newRxLoop for different messages.
func newRxTrainLoop(t testing.TB, msgs [][]byte) (*rxBench, func()) {
	const touched = 128 // bytes of a message that Rx changes, at most
	b, _ := newRxLoop(t, msgs[0], 1)
	q := &loopQP{}
	b.Detach()
	if err := b.Attach(q, b.qp.recvCQ, b.qp.mr, 3); err != nil {
		t.Fatal(err)
	}
	var heads [][]byte
	for _, m := range msgs {
		head, _ := received(gidB, gidA, m)
		heads = append(heads, head)
	}
	for slot := range uint32(1024) { // each slot always gets the same message
		copy(b.ring.bytes(slot), heads[int(slot)%len(msgs)])
	}
	return b, func() {
		for range msgs {
			id := q.pop()
			m := int(uint32(id)) % len(msgs)
			copy(b.ring.bytes(uint32(id)), heads[m][:touched])
			b.qp.recvCQ.add(hca.WC{ID: id, Flags: hca.WCFlagGRH, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(msgs[m]))})
		}
		if err := b.Pump(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Neither a frame that the device segments nor segments that are joined allocate anything.
func TestLargeFramesAllocateNothing(t *testing.T) {
	tx := newLargeTxLoop(t, largeTCP(macB, 60000, 1388), 16)
	if n := testing.AllocsPerRun(100, func() { tx.pump(t) }); n != 0 {
		t.Errorf("sending: %v allocations", n)
	}
	if tx.pieces.Load() == 0 {
		t.Error("no frame was sent as segments")
	}
	rx, round := newRxTrainLoop(t, tcpSegments(hca.Batch, 1388))
	round() // the fake's own slices grow once
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("receiving: %v allocations", n)
	}
	if rx.merged.Load() == 0 {
		t.Error("no segments were joined")
	}
}

// BenchmarkBound compares the work of package ud for a batch of frames with what it cannot
// avoid: on receive a read of the bytes, for the checksums. On send it reads only the
// headers; the bound includes the copy by which the bench imitates the read of the TAP.
func BenchmarkBound(b *testing.B) {
	for _, size := range []int{64, 1400} {
		b.Run(fmt.Sprintf("send-64/%d", size), func(b *testing.B) {
			f := toB(size)
			tx := newTxLoop(b, f, hca.Batch)
			b.ReportAllocs()
			for b.Loop() {
				tx.pump(b)
			}
			bound.Report(b, bound.Times(hca.Batch, bound.Copy(len(f))))
		})
		b.Run(fmt.Sprintf("receive-64/%d", size), func(b *testing.B) {
			m := fromB(size)
			_, round := newRxLoop(b, m, hca.Batch)
			b.ReportAllocs()
			for b.Loop() {
				round()
			}
			bound.Report(b, bound.Times(hca.Batch, bound.Copy(128)))
		})
	}
	b.Run("send-16/60000", func(b *testing.B) {
		const n = 16
		f := largeTCP(macB, 60000, 1388)
		tx := newLargeTxLoop(b, f, n)
		b.ReportAllocs()
		for b.Loop() {
			tx.pump(b)
		}
		bound.Report(b, bound.Times(n, bound.Copy(len(f))))
	})
	b.Run("receive-64/joined-1388", func(b *testing.B) {
		msgs := tcpSegments(hca.Batch, 1388)
		_, round := newRxTrainLoop(b, msgs)
		b.ReportAllocs()
		for b.Loop() {
			round()
		}
		bound.Report(b, bound.Times(hca.Batch, bound.Read(len(msgs[0]))))
	})
}
