package udp_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// trainOf returns a train of n datagrams of size bytes.
func trainOf(a, b transporttest.Host, v6 bool, n, size int) transport.Packet {
	pkt := transport.Packet{Src: a.IPv4, Dst: b.IPv4, TOS: 0x68, TTL: 9, Data: make([]byte, n*size), Segs: n, SegSize: size}
	if v6 {
		pkt.Src, pkt.Dst = a.IPv6, b.IPv6
	}
	return pkt
}

// Where the netdev does not cut trains, the kernel does, and datagram k leaves with
// identification k and DF, which the ICRC covers. The source port and the fields of the
// packet are those of single datagrams.
func TestTrainOnTheWire(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, off := range []string{"tx-udp-segmentation", "tx"} { // tx is the offload of checksums
		t.Run(off, func(t *testing.T) { trainOnTheWire(t, off) })
	}
}

func trainOnTheWire(t *testing.T, off string) {
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("ethtool", "-K", nstest.Dev, off, "off")
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
	fd4 := packetSocket(t, nsB, b.State().Index, unix.ETH_P_IP)
	fd6 := packetSocket(t, nsB, b.State().Index, unix.ETH_P_IPV6)
	for range 2 { // because an identification that is a counter may start at zero
		const n = transport.MaxSegs
		sendOne(t, a, trainOf(a, b, false, n, 10))
		for k := range n {
			p := captureUDP(t, fd4, 20)
			if id := binary.BigEndian.Uint16(p[4:]); int(id) != k {
				t.Errorf("datagram %d has identification %d", k, id)
			}
			p[4], p[5] = 0, 0
			checkIPv4(t, p, a)
		}
		sendOne(t, a, trainOf(a, b, true, n, 10))
		for range n {
			checkIPv6(t, captureUDP(t, fd6, 40), a)
		}
	}
	if err := a.Transport.(*udp.Transport).TrainsRefused(); err != nil {
		t.Errorf("trains are off: %v", err)
	}
}

// A train to a group leaves like single datagrams.
func TestTrainToAGroup(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, 1500)
	for _, v6 := range []bool{false, true} {
		pkt := trainOf(a, b, v6, 3, 20)
		pkt.TTL = 0
		pkt.Dst = group4
		if v6 {
			pkt.Dst = group6
		}
		if err := b.Join(pkt.Dst); err != nil {
			t.Fatal(err)
		}
		sendOne(t, a, pkt)
		for range 3 {
			if got := recvOne(t, b); got.TTL != udp.MulticastTTL || len(got.Data) != 20 || got.Dst != pkt.Dst {
				t.Errorf("received %d bytes to %v with TTL %d", len(got.Data), got.Dst, got.TTL)
			}
		}
	}
}

// Sending trains allocates nothing.
func TestAllocsOfTrains(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, transporttest.MTU)
	pkts := []transport.Packet{trainOf(a, b, false, 30, 2000), trainOf(a, b, true, 30, 2000)}
	recv := make([]transport.Packet, 64)
	round := func() {
		if n, err := a.Send(pkts); n != len(pkts) || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		for got := 0; got < 60; {
			n, err := b.Recv(recv)
			if err != nil {
				t.Fatalf("Recv: %v", err)
			}
			got += n
		}
	}
	if allocs := testing.AllocsPerRun(1000, round); allocs != 0 {
		t.Errorf("%v allocations per two trains", allocs)
	}
}

// BenchmarkSend sends the same datagrams one by one and as trains, in batches of up to 64, and
// discards them at the receiver's full socket.
func BenchmarkSend(bench *testing.B) {
	for _, size := range []int{64, 1468, 2068, 4116} {
		n := min(transport.MaxSegs, 65507/size)
		a, b := openPair(bench, transporttest.MTU)
		single := make([]transport.Packet, 0, n)
		for range n {
			single = append(single, trainOf(a, b, false, 1, size))
		}
		for _, c := range []struct {
			name string
			pkts []transport.Packet
		}{{"single", single}, {"train", []transport.Packet{trainOf(a, b, false, n, size)}}} {
			bench.Run(fmt.Sprintf("%d/%s", size, c.name), func(bench *testing.B) {
				bench.SetBytes(int64(size * n))
				for bench.Loop() {
					if _, err := a.Send(c.pkts); err != nil {
						bench.Fatal(err)
					}
				}
				bench.ReportMetric(float64(bench.Elapsed().Nanoseconds())/float64(bench.N*n), "ns/datagram")
			})
		}
	}
}
