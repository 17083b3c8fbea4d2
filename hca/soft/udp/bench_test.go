package udp_test

import (
	"fmt"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/link/linktest/nstest"
)

// BenchmarkStream carries datagrams in batches over a veth pair, sending and receiving
// alternately.
func BenchmarkStream(bench *testing.B) {
	for _, size := range []int{64, 2048, 4096} {
		bench.Run(fmt.Sprint(size), func(bench *testing.B) {
			a, b := openPair(bench, transporttest.MTU)
			bench.ReportAllocs()
			bench.SetBytes(int64(size))
			stream(bench, a, b, size)
			bench.ReportMetric(float64(bench.N)/bench.Elapsed().Seconds(), "datagrams/s")
		})
	}
}

func stream(bench *testing.B, a, b transporttest.Host, size int) {
	send, recv := batch(a, b, size), make([]transport.Packet, hca.Batch)
	for left := bench.N; left > 0; {
		n, err := a.Send(send[:min(left, len(send))])
		if err != nil {
			bench.Fatal(err)
		}
		left -= n
		for n > 0 {
			k, err := b.Recv(recv[:n])
			if err != nil {
				bench.Fatal(err)
			}
			n -= k
		}
	}
}

func batch(a, b transporttest.Host, size int) []transport.Packet {
	pkts := make([]transport.Packet, hca.Batch)
	for i := range pkts {
		pkts[i] = transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, size)}
	}
	return pkts
}

// Sending and receiving a batch allocates nothing, in both families.
func TestAllocs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, transporttest.MTU)
	send, recv := batch(a, b, 1000), make([]transport.Packet, hca.Batch)
	for i := range send {
		if i%2 == 1 {
			send[i].Src, send[i].Dst = a.IPv6, b.IPv6
		}
	}
	round := func() {
		if n, err := a.Send(send); n != len(send) || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		for got := 0; got < len(send); {
			n, err := b.Recv(recv)
			if err != nil {
				t.Fatalf("Recv: %v", err)
			}
			got += n
		}
	}
	// AllocsPerRun rounds down, so an occasional reading of the underlay's state, which
	// allocates, does not count over many rounds.
	if allocs := testing.AllocsPerRun(2000, round); allocs != 0 {
		t.Errorf("%v allocations per batch of %d", allocs, len(send))
	}
}

// BenchmarkPingPong measures the round trip of one datagram.
func BenchmarkPingPong(bench *testing.B) {
	a, b := openPair(bench, transporttest.MTU)
	there := transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, 64)}
	back := transport.Packet{Src: b.IPv4, Dst: a.IPv4, Data: there.Data}
	go echo(b, back)
	ping, pong := []transport.Packet{there}, make([]transport.Packet, 1)
	for bench.Loop() {
		if _, err := a.Send(ping); err != nil {
			bench.Fatal(err)
		}
		if _, err := a.Recv(pong); err != nil {
			bench.Fatal(err)
		}
	}
}

func echo(h transporttest.Host, answer transport.Packet) {
	in, out := make([]transport.Packet, 1), []transport.Packet{answer}
	for {
		if _, err := h.Recv(in); err != nil {
			return
		}
		if _, err := h.Send(out); err != nil {
			return
		}
	}
}
