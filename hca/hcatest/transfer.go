package hcatest

import (
	"bytes"

	"ipoibd/hca"
)

var transferChecks = []check{
	{name: "transfer/both_ways", run: transferBothWays},
	{name: "transfer/every_length", run: transferLengths},
	{name: "transfer/gather_and_scatter", run: transferScatter},
	{name: "transfer/completion", run: transferCompletion},
	{name: "transfer/source", run: transferSource},
	{name: "transfer/signaling", run: transferSignaling},
	{name: "transfer/order", run: transferOrder},
	{name: "transfer/to_itself", run: transferToItself},
	{name: "transfer/controlled_qkey", run: transferControlledQKey},
}

// pattern returns n bytes that differ from patterns of other lengths.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	return b
}

func transferBothWays(b *bench) {
	x, y := b.pair()
	x.postRecv(1)
	y.postRecv(1)
	x.probe(y, "there")
	y.probe(x, "and back")
}

// Messages of every length from 0 to the GID's MaxPayload arrive unchanged.
func transferLengths(b *bench) {
	x, y := b.pair()
	longest := x.gid().MaxPayload
	for _, n := range []int{0, 1, 2, 3, 4, 5, 63, 64, 255, longest - 3, longest - 2, longest - 1, longest} {
		y.postRecv(1)
		x.postSend(x.wr(1, y, x.message(0, pattern(n))))
		x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
		if got := y.received(y.next(y.recv, 1)[0]); !bytes.Equal(got, pattern(n)) {
			b.Fatalf("%d bytes arrived as %d: %x", n, len(got), got)
		}
	}
}

// Gather lists of two entries, and scatter lists split at and near the end of the GRH.
func transferScatter(b *bench) {
	x, y := b.pair()
	want := pattern(300)
	for _, cut := range []int{0, 1, 14, 299, 300} {
		head, tail := x.message(0, want[:cut]), x.message(1, want[cut:])
		for _, at := range []int{1, 39, hca.GRHLen, 41, 100, 339} {
			clear(y.rx.Bytes()[:2*slotSize])
			wr := hca.RecvWR{ID: 7, SGList: []hca.SGE{y.rx.SGE(0, at), y.rx.SGE(slotSize, 340-at)}}
			if n, err := y.qp.PostRecv([]hca.RecvWR{wr}); n != 1 {
				b.Fatalf("post receive: %v", err)
			}
			x.postSend(x.wr(1, y, head, tail))
			x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
			y.wantStatus(y.next(y.recv, 1), hca.WCSuccess, 7)
			got := bytes.Join([][]byte{y.rx.Bytes()[:at], y.rx.Bytes()[slotSize:][:340-at]}, nil)
			if !bytes.Equal(got[hca.GRHLen:], want) {
				b.Fatalf("sent in pieces from %d, received in pieces from %d: %x", cut, at, got)
			}
		}
	}
}

func transferCompletion(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	x.postSend(x.wr(42, y, x.message(0, pattern(100))))
	sent := x.next(x.send, 1)[0]
	if sent.ID != 42 || sent.Status != hca.WCSuccess || sent.Opcode != hca.WCSend || sent.QPN != x.qp.Num() {
		b.Errorf("send completion %+v", sent)
	}
	got := y.next(y.recv, 1)[0]
	if got.ID != 0 || got.Status != hca.WCSuccess || got.Opcode != hca.WCRecv || got.QPN != y.qp.Num() ||
		got.SrcQPN != x.qp.Num() || got.ByteLen != 100+hca.GRHLen || (got.Flags&hca.WCFlagGRH == 0) != b.f.NoGRH {
		b.Errorf("receive completion %+v", got)
	}
}

// A receive identifies its sender.
func transferSource(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	y.wantSource(x.probe(y, "from x"), x)
}

// wantSource checks who sent the message in slot 0 by its completion: by the LID on InfiniBand, and by the GIDs of both
// ends in the GRH area, if it has a GRH.
func (e *end) wantSource(wc hca.WC, from *end) {
	e.Helper()
	if wc.SLID != from.host.DLID {
		e.Errorf("from LID %#x, want %#x", wc.SLID, from.host.DLID)
	}
	if e.f.NoGRH {
		return
	}
	for _, network := range []hca.NetworkType{hca.NetworkUnknown, wc.Network} {
		src, dst, err := hca.ParseGRH(e.rx.Bytes()[:hca.GRHLen], network)
		must(e, err, "parse GRH")
		if src != from.gid().GID || dst != e.gid().GID {
			e.Errorf("GRH of network type %d from %v to %v, want %v to %v", network, src, dst, from.gid().GID, e.gid().GID)
		}
	}
}

// Only signaled sends complete, in order.
func transferSignaling(b *bench) {
	s := defaultSpec()
	s.qp.SignalAll = false
	x, y := b.newEnd(b.a, s), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	y.postRecv(6)
	for i := range 6 {
		wr := x.wr(uint64(i), y, x.message(i, []byte{byte(i)}))
		if i%3 == 2 {
			wr.Flags = hca.SendSignaled
		}
		x.postSend(wr)
	}
	y.next(y.recv, 6)
	x.wantStatus(x.next(x.send, 2), hca.WCSuccess, 2, 5)
	x.wantNone(x.send)
}

// A list of sends arrives in order, in the receives in the order of posting.
func transferOrder(b *bench) {
	x, y := b.pair()
	y.postRecv(depth)
	var wrs []hca.SendWR
	for i := range depth {
		wrs = append(wrs, x.wr(uint64(i), y, x.message(i, pattern(i+1))))
	}
	x.postSend(wrs...)
	x.next(x.send, depth)
	for i, wc := range y.next(y.recv, depth) {
		if wc.ID != uint64(i) || !bytes.Equal(y.received(wc), pattern(i+1)) {
			b.Fatalf("message %d: %+v", i, wc)
		}
	}
}

// A QP can send to itself and to another QP on the same port.
func transferToItself(b *bench) {
	x, y := b.newEnd(b.a, defaultSpec()), b.newEnd(b.a, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	x.postRecv(1)
	y.postRecv(1)
	if wc := x.probe(x, "to itself"); wc.SrcQPN != x.qp.Num() {
		b.Errorf("from %v", wc.SrcQPN)
	}
	y.wantSource(x.probe(y, "to a neighbour"), x)
}

// A Q_Key with the top bit set selects the sending QP's own Q_Key.
func transferControlledQKey(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	wr := x.wr(1, y, x.message(0, []byte("own key")))
	wr.UD.QKey = hca.QKeyControlled | 0x1234
	x.postSend(wr)
	if got := string(y.received(y.next(y.recv, 1)[0])); got != "own key" {
		b.Errorf("received %q", got)
	}
	x.next(x.send, 1)
}
