package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

var tests = []struct {
	name string
	run  func(t *testing.T, a, b Host)
}{
	{"SourcePort", testSourcePort},
	{"Unicast", testUnicast},
	{"Order", testOrder},
	{"MixedFamilies", testMixedFamilies},
	{"Sizes", testSizes},
	{"TooLong", testTooLong},
	{"Refused", testRefused},
	{"Trains", testTrains},
	{"TrainsAmongOthers", testTrainsAmongOthers},
	{"TrainsRefused", testTrainsRefused},
	{"Multicast", testMulticast},
	{"MembershipCounts", testMembershipCounts},
	{"ManyGroups", testManyGroups},
	{"BadGroups", testBadGroups},
	{"RecvBatch", testRecvBatch},
	{"Interrupt", testInterrupt},
	{"State", testState},
	{"LinkDown", testLinkDown},
	{"Addresses", testAddresses},
	{"MTUCut", testMTUCut},
	{"Removed", testRemoved},
	{"WaitChangeContext", testWaitChangeContext},
	{"WaitWritable", testWaitWritable},
	{"Close", testClose},
	{"NoAllocs", testNoAllocs},
}

// Groups without other members (RFC 2365; RFC 4291, 2.7: transient, link-local).
var (
	group4 = netip.MustParseAddr("239.192.1.2")
	group6 = netip.MustParseAddr("ff12::1:2")
)

// bothFamilies runs a subtest with b's address of each family.
func bothFamilies(b Host, f func(dst netip.Addr)) {
	f(b.IPv4)
	f(b.IPv6)
}

func testSourcePort(t *testing.T, a, b Host) {
	for _, h := range []Host{a, b} {
		if p := h.SrcPort(); p < 0xc000 {
			t.Errorf("source port %#x, want 0xC000-0xFFFF", p)
		}
	}
}

func testUnicast(t *testing.T, a, b Host) {
	bothFamilies(b, func(dst netip.Addr) {
		pkt := a.packet(dst, "headbodytail")
		pkt.TOS, pkt.TTL = 0x68, 33
		a.sendAll(t, pkt)
		got := b.recvN(t, 1)[0]
		want := transport.Packet{Src: a.addr(dst), Dst: dst, SrcPort: a.SrcPort(), TOS: 0x68, TTL: 33}
		checkPacket(t, got, want, "headbodytail")
	})
}

func checkPacket(t *testing.T, got, want transport.Packet, data string) {
	t.Helper()
	if got.Src != want.Src || got.Dst != want.Dst || got.SrcPort != want.SrcPort ||
		got.TOS != want.TOS || got.TTL != want.TTL {
		t.Errorf("received %v -> %v port %#x tos %#x ttl %d, want %v -> %v port %#x tos %#x ttl %d",
			got.Src, got.Dst, got.SrcPort, got.TOS, got.TTL,
			want.Src, want.Dst, want.SrcPort, want.TOS, want.TTL)
	}
	if string(got.Data) != data {
		t.Errorf("received %q, want %q", got.Data, data)
	}
	if got.IDKnown && got.ID != 0 {
		t.Errorf("received identification %d, want 0", got.ID)
	}
}

// testOrder: more datagrams than a batch arrive in order.
func testOrder(t *testing.T, a, b Host) {
	const n = 200
	var pkts []transport.Packet
	for i := range n {
		pkts = append(pkts, a.packet(b.IPv4, fmt.Sprintf("%04d", i)))
	}
	a.sendAll(t, pkts...)
	for i, got := range b.recvN(t, n) {
		if want := fmt.Sprintf("%04d", i); string(got.Data) != want {
			t.Fatalf("datagram %d is %q, want %q", i, got.Data, want)
		}
	}
	if tx, rx := a.counter(t, "tx_packets"), b.counter(t, "rx_packets"); tx != n || rx != n {
		t.Errorf("tx_packets %d, rx_packets %d, want %d", tx, rx, n)
	}
	if tx, rx := a.counter(t, "tx_bytes"), b.counter(t, "rx_bytes"); tx != 4*n || rx != 4*n {
		t.Errorf("tx_bytes %d, rx_bytes %d, want %d", tx, rx, 4*n)
	}
}

// testMixedFamilies: one call may send packets of both families, mixed with invalid ones.
func testMixedFamilies(t *testing.T, a, b Host) {
	mixed := transport.Packet{Src: a.IPv4, Dst: b.IPv6, Data: []byte("mixed")}
	a.sendAll(t, mixed, a.packet(b.IPv4, "one"), a.packet(b.IPv6, "two"), mixed, a.packet(b.IPv4, "three"), mixed)
	var got []string
	for _, pkt := range b.recvN(t, 3) {
		got = append(got, string(pkt.Data))
	}
	slices.Sort(got)
	if want := []string{"one", "three", "two"}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q in any order", got, want)
	}
	if n := a.counter(t, "tx_drop_invalid"); n != 3 {
		t.Errorf("send_invalid = %d, want 3", n)
	}
}

// maxData returns the length of the longest datagram to dst that the MTU permits.
func maxData(mtu int, dst netip.Addr) int {
	if dst.Is4() {
		return mtu - 20 - 8
	}
	return mtu - 40 - 8
}

func testSizes(t *testing.T, a, b Host) {
	bothFamilies(b, func(dst netip.Addr) {
		for _, n := range []int{1, 24, 255, 1500, 4192, maxData(MTU, dst)} {
			want := strings.Repeat("0123456789abcdef", n/16+1)[:n]
			a.sendAll(t, a.packet(dst, want))
			if got := b.recvN(t, 1)[0]; string(got.Data) != want {
				t.Errorf("%d bytes to %v arrive as %d, or others", n, dst, len(got.Data))
			}
		}
	})
}

// testTooLong: a datagram one byte longer than the MTU permits is dropped and counted,
// and the next one is sent.
func testTooLong(t *testing.T, a, b Host) {
	bothFamilies(b, func(dst netip.Addr) {
		before := a.counter(t, "tx_drop_too_long")
		a.sendAll(t, a.packet(dst, strings.Repeat("x", maxData(MTU, dst)+1)), a.packet(dst, "marker"))
		if got := b.recvN(t, 1)[0]; string(got.Data) != "marker" {
			t.Errorf("received %d bytes, want the marker", len(got.Data))
		}
		if n := a.counter(t, "tx_drop_too_long") - before; n != 1 {
			t.Errorf("to %v: too_long grew by %d, want 1", dst, n)
		}
	})
}

// testRefused: packets that are inconsistent, or do not fit the host, are dropped and
// counted, and do not delay others.
func testRefused(t *testing.T, a, b Host) {
	foreign := a.packet(b.IPv4, "x")
	foreign.Src = netip.MustParseAddr("198.51.100.7")
	a.sendAll(t, foreign, transport.Packet{}, a.packet(b.IPv4, "marker"))
	if got := b.recvN(t, 1)[0]; string(got.Data) != "marker" {
		t.Errorf("received %q, want the marker", got.Data)
	}
	if n := a.counter(t, "tx_drop_bad_source"); n != 1 {
		t.Errorf("bad_source = %d, want 1", n)
	}
	if n := a.counter(t, "tx_drop_invalid"); n != 1 {
		t.Errorf("send_invalid = %d, want 1", n)
	}
}

func testRecvBatch(t *testing.T, a, b Host) {
	var pkts []transport.Packet
	for i := range 10 {
		pkts = append(pkts, a.packet(b.IPv4, string(rune('0'+i))))
	}
	a.sendAll(t, pkts...)
	var got bytes.Buffer
	for _, size := range []int{1, 3, 2, 4} {
		for _, pkt := range b.recvN(t, size) {
			got.Write(pkt.Data)
		}
	}
	if got.String() != "0123456789" {
		t.Errorf("received %q, want the ten in order", got.String())
	}
}

// testInterrupt: Interrupt ends the current Recv, or else the next one, once, and loses nothing.
func testInterrupt(t *testing.T, a, b Host) {
	pkts := make([]transport.Packet, 4)
	for range 10 {
		b.Interrupt()
		if n, err := b.Recv(pkts); n != 0 || err != nil {
			t.Errorf("Recv after Interrupt returned %d and error %v, want 0 and none", n, err)
		}
		ended := make(chan int)
		go func() {
			n, err := b.Recv(pkts)
			if err != nil {
				t.Errorf("interrupted Recv: %v", err)
			}
			ended <- n
		}()
		b.Interrupt()
		if n := <-ended; n != 0 {
			t.Errorf("interrupted Recv returned %d packets", n)
		}
		a.sendAll(t, a.packet(b.IPv4, "x"))
		if got := b.recvN(t, 1)[0]; string(got.Data) != "x" {
			t.Errorf("received %q after Interrupt, want %q", got.Data, "x")
		}
	}
}

// testWaitWritable: if there is room to send, it returns at once.
func testWaitWritable(t *testing.T, a, _ Host) {
	if err := a.WaitWritable(t.Context()); err != nil {
		t.Errorf("WaitWritable: %v", err)
	}
}

func testClose(t *testing.T, a, b Host) {
	recv, change := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.Recv(make([]transport.Packet, 1))
		recv <- err
	}()
	a.State()
	go func() {
		for {
			if _, err := a.WaitChange(context.Background()); err != nil {
				change <- err
				return
			}
		}
	}()
	for range 2 {
		if err := a.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	checkClosed(t, "blocked Recv", <-recv)
	checkClosed(t, "blocked WaitChange", <-change)
	_, err := a.Recv(make([]transport.Packet, 1))
	checkClosed(t, "Recv", err)
	_, err = a.Send([]transport.Packet{a.packet(b.IPv4, "x")})
	checkClosed(t, "Send", err)
	_, err = a.WaitChange(t.Context())
	checkClosed(t, "WaitChange", err)
	checkClosed(t, "WaitWritable", a.WaitWritable(t.Context()))
	checkClosed(t, "Join", a.Join(group4))
	checkClosed(t, "Leave", a.Leave(group4))
	a.Counters()
}

func checkClosed(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, hca.ErrClosed) {
		t.Errorf("%s: error %v, want hca.ErrClosed", what, err)
	}
}

// testNoAllocs: sending and receiving a batch does not allocate per datagram.
func testNoAllocs(t *testing.T, a, b Host) {
	const n = 64
	send, recv := make([]transport.Packet, n), make([]transport.Packet, n)
	for i := range send {
		send[i] = a.packet([]netip.Addr{b.IPv4, b.IPv6}[i%2], "some bytes")
	}
	round := func() {
		a.sendAll(t, send...)
		for got := 0; got < n; {
			k, err := b.Recv(recv)
			if err != nil {
				t.Fatalf("Recv: %v", err)
			}
			got += k
		}
	}
	round()
	// The allocations of sendAll itself, for its context, do not grow with the batch.
	if allocs := testing.AllocsPerRun(50, round); allocs >= n/4 {
		t.Errorf("%v allocations for %d datagrams, want none per datagram", allocs, n)
	}
}
