package udp_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// A datagram longer than MaxDatagram is dropped and counted.
func TestReceiveTooLong(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, 16000)
	for _, n := range []int{udp.MaxDatagram + 1, udp.MaxDatagram} {
		sendOne(t, a, transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, n)})
	}
	if got := recvOne(t, b); len(got.Data) != udp.MaxDatagram {
		t.Errorf("received %d bytes, want %d", len(got.Data), udp.MaxDatagram)
	}
	if n := counterOf(t, b, "rx_drop_too_long"); n != 1 {
		t.Errorf("rx_drop_too_long = %d, want 1", n)
	}
	for _, c := range b.Counters() {
		if loss := strings.Contains(c.Name, "_drop"); c.Kind == hca.CountUnknown || (c.Kind == hca.CountDrop) != loss {
			t.Errorf("%s has kind %d", c.Name, c.Kind)
		}
	}
}

func counterOf(t *testing.T, h transporttest.Host, name string) uint64 {
	t.Helper()
	i := slices.IndexFunc(h.Counters(), func(c hca.Counter) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no counter %q", name)
	}
	return h.Counters()[i].Value
}

// Every datagram that does not fit into a small receive buffer is counted, and the count
// is still available after Close.
func TestOverflow(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{RecvBuf: 20_000})
	const n = 500
	pkts := make([]transport.Packet, n)
	for i := range pkts {
		pkts[i] = transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, 1000)}
	}
	if sent, err := a.Send(pkts); sent != n || err != nil {
		t.Fatalf("Send = %d, %v", sent, err)
	}
	lost := await(t, "the overflow to end", func() (uint64, bool) {
		before := counterOf(t, b, "socket_drops")
		time.Sleep(20 * time.Millisecond)
		after := counterOf(t, b, "socket_drops")
		return after, after > 0 && after == before
	})
	for range n - lost {
		recvOne(t, b)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := counterOf(t, b, "socket_drops"); got != lost {
		t.Errorf("socket_drops = %d after Close, want %d", got, lost)
	}
	if got := counterOf(t, b, "rx_packets"); got != n-lost {
		t.Errorf("rx_packets = %d, want %d", got, n-lost)
	}
}

func await(t *testing.T, what string, ok func() (uint64, bool)) uint64 {
	t.Helper()
	for end := time.Now().Add(transporttest.Patience); time.Now().Before(end); {
		if v, done := ok(); done {
			return v
		}
	}
	t.Fatalf("%s did not happen in time", what)
	return 0
}

// If a slow queue fills the send buffer, Send accepts fewer packets, and no accepted
// packet is lost or reordered.
func TestFull(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("tc", "qdisc", "add", "dev", nstest.Dev, "root", "tbf", "rate", "4mbit", "burst", "2000", "limit", "1000000")
	a, b := openHost(t, nsA, 0, udp.Config{SendBuf: 20_000}), openHost(t, nsB, 1, udp.Config{})
	pkts := make([]transport.Packet, 100)
	for i := range pkts {
		pkts[i] = transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: append([]byte{byte(i)}, make([]byte, 1000)...)}
	}
	waits := 0
	for rest := pkts; len(rest) > 0; {
		n, err := a.Send(rest)
		if err != nil {
			t.Fatal(err)
		}
		if rest = rest[n:]; len(rest) > 0 {
			waits++
			if err := a.WaitWritable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if waits == 0 {
		t.Error("Send always accepted all packets, so the test proves nothing")
	}
	for i := range pkts {
		if got := recvOne(t, b); got.Data[0] != byte(i) {
			t.Fatalf("received datagram number %[2]d, want %[1]d", i, got.Data[0])
		}
	}
}

// WaitWritable on a full socket returns when its context ends or on Close.
func TestWaitWritableEnds(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("tc", "qdisc", "add", "dev", nstest.Dev, "root", "tbf", "rate", "8", "burst", "2000", "limit", "1000000")
	a, b := openHost(t, nsA, 0, udp.Config{SendBuf: 20_000}), openHost(t, nsB, 1, udp.Config{})
	pkts := make([]transport.Packet, 100)
	for i := range pkts {
		pkts[i] = transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, 1000)}
	}
	if n, err := a.Send(pkts); n == len(pkts) || err != nil {
		t.Fatalf("Send = %d, %v, want fewer packets than given", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := a.WaitWritable(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitWritable: %v, want the context's error", err)
	}
	time.AfterFunc(30*time.Millisecond, func() { _ = a.Close() })
	if err := a.WaitWritable(t.Context()); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("WaitWritable: %v, want hca.ErrClosed", err)
	}
}
