package ud

import (
	"bytes"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// FuzzTx gives Tx an arbitrary frame with an arbitrary reported length. Tx
// sends only the frame's own payload and loses no slot.
func FuzzTx(f *testing.F) {
	for _, typ := range []ipoib.EtherType{0x0800, 0x0806, 0x8035, 0x86dd} {
		for _, payload := range [][]byte{ipv4("10.0.0.2", 60), udp6("ff02::fb"), ns6("ff02::1"), ipv4("10.0.0.2", testMTU+1)} {
			f.Add(frame(macB, macA, typ, payload), 0)
			f.Add(frame(ipoib.MAC{1, 0, 0x5e, 1, 2, 3}, macA, typ, payload), 0)
		}
	}
	f.Add(toB(60), 1)
	f.Add(toB(60), -1000)
	b := newTxBench(f, 128)
	f.Fuzz(func(t *testing.T, frame []byte, excess int) {
		b.slow.frames = nil
		b.cfg.Source = &oneFrame{frame: frame, size: len(frame) + excess}
		b.pump(t)
		for _, m := range b.sent() {
			if len(m) < 4 || len(m) > testMTU+4 || excess == 0 && !bytes.Equal(m[4:], frame[24:]) {
				t.Errorf("sent %x, want only the frame's payload", m)
			}
		}
		b.qp.completeSends(len(b.qp.sends), hca.WCSuccess)
		b.pump(t)
		checkAccounts(t, b.Counters())
		b.checkRing(t)
		if b.ring.posted != 0 {
			t.Errorf("%d slots posted at rest", b.ring.posted)
		}
	})
}

// oneFrame is a source that returns one frame and reports size as its length.
type oneFrame struct {
	frame []byte
	size  int
	done  bool
}

func (s *oneFrame) Wake() {}

func (s *oneFrame) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	if s.done {
		return 0, nil
	}
	s.done = true
	copy(bufs[0], s.frame)
	sizes[0] = s.size
	return 1, nil
}

// FuzzRx gives Rx arbitrary slot contents with an arbitrary completion. Every
// frame that Rx delivers is a complete Ethernet frame for the host, and no
// buffer is lost.
func FuzzRx(f *testing.F) {
	ok := uint8(hca.WCSuccess)
	for _, m := range [][]byte{
		fromB(20), fromB(60), fromB(testMTU), fromB(testMTU + 1),
		msg(ipoib.EtherTypeIPv6, udp6("ff02::fb")), msg(ipoib.EtherTypeIPv6, ns6("ff02::1")), msg(ipoib.EtherTypeARP, make([]byte, 56)),
	} {
		buf, wc := received(gidB, gidA, m)
		f.Add(buf[:wc.ByteLen], wc.ByteLen, ok, uint8(wc.Flags), uint32(qpnB), uint64(1)<<32)
	}
	buf, wc := received(gidB, gidA, fromB(60))
	f.Add(buf[:100], uint32(43), ok, uint8(wc.Flags), uint32(qpnA), uint64(1)<<32)
	f.Add(buf[:100], ^uint32(0), ok, uint8(wc.Flags), uint32(qpnA), uint64(1)<<32)
	f.Add(buf[:100], wc.ByteLen, uint8(hca.WCWRFlushErr), uint8(0), uint32(0), uint64(2)<<32)
	f.Add(buf[:wc.ByteLen], wc.ByteLen, ok, uint8(0x80|testLMC<<4), uint32(lidB)<<16|0x99, uint64(1)<<32)
	b := newRxBench(f, 64)
	f.Fuzz(func(t *testing.T, data []byte, n uint32, status, flags uint8, src uint32, id uint64) {
		b.sink.frames, b.slow.msgs, b.slow.from, b.fails = nil, nil, nil, nil
		copy(b.qp.mr.at(b.qp.recvs[0].sge), data)
		wc := hca.WC{Status: hca.WCStatus(status), ByteLen: n, Flags: hca.WCFlags(flags), SrcQPN: hca.QPN(src), SLID: uint16(src >> 16)}
		if b.UseGIDs(); flags&0x80 != 0 {
			b.UseLIDs(flags >> 4 & 7)
		}
		b.qp.completeRecv(wc)
		b.qp.completeID(id, wc) // and another, or unknown, receive
		if err := b.Pump(time.Time{}); err != nil {
			t.Fatal(err)
		}
		for _, out := range b.sink.frames {
			if len(out) < 70 || len(out) > 24+testMTU || !bytes.Equal(out[16:22], macB[:]) {
				t.Errorf("invalid frame %x for the host", out)
			}
		}
		if err := b.Refill(); err != nil || b.Outstanding() != 64 {
			t.Errorf("refill: %v, %d of 64, want all", err, b.Outstanding())
		}
		checkAccounts(t, b.Counters())
		b.checkRing(t)
	})
}
