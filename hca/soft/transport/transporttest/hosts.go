package transporttest

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca/soft/transport"
)

// Patience bounds each wait of the suite; only a failing test waits that long.
const Patience = 20 * time.Second

// MTU is the MTU in bytes that the hosts' link must have.
const MTU = 9000

// Underlay has the changes that an administrator may make to a host's netdev.
type Underlay interface {
	SetUp(on bool)
	SetMTU(mtu int)
	AddAddr(a netip.Addr)
	DelAddr(a netip.Addr)
	Remove()
}

// Host is one of the two hosts of a test. Its transport is open. The test may close it,
// and the creator of the host closes it in any case.
type Host struct {
	transport.Transport
	Underlay Underlay
	IPv4     netip.Addr // an address of the netdev
	IPv6     netip.Addr // a global address of the netdev
}

// addr returns the host's address of the same family as like.
func (h Host) addr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return h.IPv4
	}
	return h.IPv6
}

// Each runs every test of the suite as a subtest: run creates two hosts on one link with
// MTU, calls test with them and cleans up.
func Each(t *testing.T, run func(t *testing.T, test func(t *testing.T, a, b Host))) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, tt.run) })
	}
}

// packet returns a datagram to dst from the host's address of the same family.
func (h Host) packet(dst netip.Addr, data string) transport.Packet {
	return transport.Packet{Src: h.addr(dst), Dst: dst, Data: []byte(data)}
}

// sendAll sends packets, and waits while the socket is full.
func (h Host) sendAll(t *testing.T, pkts ...transport.Packet) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for len(pkts) > 0 {
		n, err := h.Send(pkts)
		if err != nil {
			t.Fatalf("Send: %v", err)
		}
		if pkts = pkts[n:]; len(pkts) == 0 {
			return
		}
		if err := h.WaitWritable(ctx); err != nil {
			t.Fatalf("WaitWritable: %v", err)
		}
	}
}

// recvN receives n datagrams and returns copies. After Patience it closes the transport.
func (h Host) recvN(t *testing.T, n int) []transport.Packet {
	t.Helper()
	defer time.AfterFunc(Patience, func() { _ = h.Close() }).Stop()
	var got []transport.Packet
	batch := make([]transport.Packet, 16)
	for len(got) < n {
		k, err := h.Recv(batch[:min(len(batch), n-len(got))])
		if err != nil {
			t.Fatalf("Recv after %d of %d datagrams: %v", len(got), n, err)
		}
		for _, pkt := range batch[:k] {
			pkt.Data = bytes.Clone(pkt.Data)
			got = append(got, pkt)
		}
	}
	return got
}

// await waits until ok returns true for the state.
func (h Host) await(t *testing.T, what string, ok func(transport.State) bool) transport.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for s := h.State(); ; {
		if ok(s) {
			return s
		}
		var err error
		if s, err = h.WaitChange(ctx); err != nil {
			t.Fatalf("wait for %s: %v; state %+v", what, err, h.State())
		}
	}
}

// counter returns a counter by name.
func (h Host) counter(t *testing.T, name string) uint64 {
	t.Helper()
	for _, c := range h.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %q", name)
	return 0
}
