package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"ipoibd/hca/soft/transport"
)

// train returns a train of n datagrams of size bytes, the last one of last bytes, and the data
// of each.
func (h Host) train(b Host, v6 bool, n, size, last int) (transport.Packet, [][]byte) {
	dst := b.IPv4
	if v6 {
		dst = b.IPv6
	}
	all := make([]byte, (n-1)*size+last)
	for i := range all {
		all[i] = byte(i*7) ^ byte(i>>8)
	}
	pkt := transport.Packet{Src: h.addr(dst), Dst: dst, TOS: 0x68, TTL: 33, Data: all, Segs: n, SegSize: size}
	return pkt, slices.Collect(slices.Chunk(all, size))
}

// wantDatagrams receives the datagrams of a train.
func (h Host) wantDatagrams(t *testing.T, what string, v6 bool, want [][]byte) {
	t.Helper()
	for k, got := range h.recvN(t, len(want)) {
		if !bytes.Equal(got.Data, want[k]) || got.TOS != 0x68 || got.TTL != 33 {
			t.Fatalf("%s: datagram %d: %d bytes, TOS %#x, TTL %d, want %d bytes",
				what, k, len(got.Data), got.TOS, got.TTL, len(want[k]))
		}
		if got.IDKnown && !v6 && int(got.ID) != k {
			t.Errorf("%s: datagram %d has identification %d", what, k, got.ID)
		}
	}
}

// testTrains: a train arrives as single datagrams, whatever their number and size, and each
// is counted.
func testTrains(t *testing.T, a, b Host) {
	limits := a.Limits()
	if limits.MaxSegs < 1 || limits.MaxSegs > transport.MaxSegs {
		t.Fatalf("limits %+v", limits)
	}
	if limits.MaxSegs == 1 {
		t.Skip("this transport takes no trains")
	}
	for _, v6 := range []bool{false, true} {
		for _, c := range []struct{ n, size, last int }{
			{2, 100, 100},
			{2, 100, 1},
			{5, 1, 1},
			{limits.MaxSegs, 64, 33},
			{7, 2000, 1999},
			{limits.MaxBytes / 4000, 4000, 4000},
			{limits.MaxBytes/8900 + 1, 8900, limits.MaxBytes % 8900},
		} {
			what := fmt.Sprintf("IPv6 %v, %+v", v6, c)
			pkt, want := a.train(b, v6, c.n, c.size, c.last)
			sent, bytes := a.counter(t, "tx_packets"), a.counter(t, "tx_bytes")
			a.sendAll(t, pkt)
			b.wantDatagrams(t, what, v6, want)
			if n := a.counter(t, "tx_packets") - sent; n != uint64(c.n) {
				t.Errorf("%s: %d packets counted", what, n)
			}
			if n := a.counter(t, "tx_bytes") - bytes; n != uint64(len(pkt.Data)) {
				t.Errorf("%s: %d bytes counted", what, n)
			}
		}
	}
}

// testTrainsAmongOthers: trains and single packets keep their order in one call.
func testTrainsAmongOthers(t *testing.T, a, b Host) {
	if a.Limits().MaxSegs == 1 {
		t.Skip("this transport takes no trains")
	}
	first, want := a.train(b, false, 3, 50, 20)
	single := a.packet(b.IPv4, "single")
	single.TOS, single.TTL = first.TOS, first.TTL
	second, more := a.train(b, false, 4, 60, 60)
	a.sendAll(t, first, single, second, single)
	b.wantDatagrams(t, "mixed", true, slices.Concat(want, [][]byte{[]byte("single")}, more, [][]byte{[]byte("single")}))
}

// testTrainsRefused: a train that exceeds the limits is not sent, but the packets before it are.
// A train that is inconsistent or too long for the MTU is dropped as a whole, and all its
// datagrams are counted.
func testTrainsRefused(t *testing.T, a, b Host) {
	limits := a.Limits()
	if limits.MaxSegs == 1 {
		t.Skip("this transport takes no trains")
	}
	many, _ := a.train(b, false, limits.MaxSegs+1, 10, 10)
	long, _ := a.train(b, false, 9, limits.MaxBytes/9+1, limits.MaxBytes/9+1)
	for what, beyond := range map[string]transport.Packet{"too many datagrams": many, "too many bytes": long} {
		n, err := a.Send([]transport.Packet{a.packet(b.IPv4, "before it"), beyond, a.packet(b.IPv4, "after it")})
		if n != 1 || !errors.Is(err, transport.ErrLimits) {
			t.Errorf("%s: Send = %d, %v, want 1, %v", what, n, err, transport.ErrLimits)
		}
		if got := b.recvN(t, 1)[0]; string(got.Data) != "before it" {
			t.Errorf("%s: received %q", what, got.Data)
		}
	}
	count := func(name string) uint64 { return a.counter(t, name) }
	invalid, tooLong := count("tx_drop_invalid"), count("tx_drop_too_long")
	few, _ := a.train(b, false, 3, 50, 50)
	few.Segs = 4 // which have at most 150 bytes
	tooMany, _ := a.train(b, false, 3, 50, 50)
	tooMany.Segs = 2
	jumbo, _ := a.train(b, false, 3, maxData(MTU, b.IPv4)+1, 10)
	a.sendAll(t, few, tooMany, jumbo, a.packet(b.IPv4, "marker"))
	if got := b.recvN(t, 1)[0]; string(got.Data) != "marker" {
		t.Errorf("received %d bytes, want the marker", len(got.Data))
	}
	if n := count("tx_drop_invalid") - invalid; n != 6 {
		t.Errorf("%d datagrams of inconsistent trains dropped, want 6", n)
	}
	if n := count("tx_drop_too_long") - tooLong; n != 3 {
		t.Errorf("%d datagrams too long for the MTU dropped, want 3", n)
	}
}
