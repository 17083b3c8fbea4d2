package memfabric_test

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/wire"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
	group = netip.MustParseAddr("239.1.2.3")
)

// packet makes a datagram from a to b.
func packet(src, dst netip.Addr, payload []byte) wire.Packet {
	return wire.Packet{Src: src, Dst: dst, Vec: [][]byte{payload}}
}

// send sends one datagram, which must be taken.
func send(t *testing.T, p *memfabric.Port, pkt wire.Packet) {
	t.Helper()
	if n, err := p.Send([]wire.Packet{pkt}); n != 1 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
}

// drain receives for a second of virtual time, until then closes the port.
func drain(t *testing.T, p *memfabric.Port) (got [][]byte) {
	t.Helper()
	time.AfterFunc(time.Second, func() { p.Close() })
	pkts := make([]wire.Packet, 8)
	for {
		n, err := p.Recv(pkts)
		if err != nil {
			return got
		}
		for _, pkt := range pkts[:n] {
			got = append(got, bytes.Clone(pkt.Data))
		}
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1, memfabric.WithConditions(memfabric.Conditions{Delay: 30 * time.Millisecond}))
		defer f.Close()
		a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
		start := time.Now()
		send(t, a, packet(addrA, addrB, []byte("x")))
		if n, err := b.Recv(make([]wire.Packet, 1)); n != 1 || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
		if d := time.Since(start); d != 30*time.Millisecond {
			t.Errorf("received after %v, want 30ms", d)
		}
	})
}
