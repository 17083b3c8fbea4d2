package transporttest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

func isUp(s transport.State) bool { return s.Up }

func isDown(s transport.State) bool { return !s.Up }

func testState(t *testing.T, a, b Host) {
	s := a.await(t, "the link to be up", isUp)
	if !s.Present || s.MTU != MTU || s.Name == "" || s.Index == 0 || s.MAC == [6]byte{} {
		t.Errorf("state %+v, want a netdev of MTU %d", s, MTU)
	}
	if s.MAC == b.State().MAC {
		t.Errorf("both hosts have MAC %x", s.MAC)
	}
	i4, i6 := slices.Index(s.Addrs, a.IPv4), slices.Index(s.Addrs, a.IPv6)
	if i4 < 0 || i6 < 0 || i4 > i6 {
		t.Errorf("addresses %v, want %v before %v", s.Addrs, a.IPv4, a.IPv6)
	}
	s.Addrs[0] = netip.Addr{}
	if again := a.State(); again.Addrs[0] == s.Addrs[0] {
		t.Error("State returned the transport's own slice")
	}
}

// testLinkDown: no datagram passes while the link is down; afterwards they do.
func testLinkDown(t *testing.T, a, b Host) {
	a.await(t, "the link to be up", isUp)
	a.Underlay.SetUp(false)
	a.await(t, "the link to be down", isDown)
	sent := a.counter(t, "tx_packets")
	a.sendAll(t, a.packet(b.IPv4, "lost"))
	if n := a.counter(t, "tx_packets"); n != sent {
		t.Errorf("a packet was counted as sent while the link is down")
	}
	a.Underlay.SetUp(true)
	a.await(t, "the link to be up again", isUp)
	b.await(t, "the peer's link to be up again", isUp)
	a.sendAll(t, a.packet(b.IPv4, "marker"))
	if got := b.recvN(t, 1)[0]; string(got.Data) != "marker" {
		t.Errorf("received %q, want the marker", got.Data)
	}
}

func testAddresses(t *testing.T, a, _ Host) {
	for _, addr := range []string{"192.0.2.77", "2001:db8::77"} {
		addr := netip.MustParseAddr(addr)
		has := func(s transport.State) bool { return slices.Contains(s.Addrs, addr) }
		a.Underlay.AddAddr(addr)
		a.await(t, addr.String(), has)
		a.Underlay.DelAddr(addr)
		s := a.await(t, addr.String()+" to go", func(s transport.State) bool { return !has(s) })
		if !slices.Contains(s.Addrs, a.IPv4) {
			t.Errorf("addresses %v, want %v to have stayed", s.Addrs, a.IPv4)
		}
	}
}

// testMTUCut: a datagram that was sent before is too long after a cut of the MTU.
func testMTUCut(t *testing.T, a, b Host) {
	a.Underlay.SetMTU(1500)
	a.await(t, "MTU 1500", func(s transport.State) bool { return s.MTU == 1500 })
	fits, tooLong := make([]byte, maxData(1500, b.IPv4)), make([]byte, maxData(1500, b.IPv4)+1)
	a.sendAll(t, a.packet(b.IPv4, string(tooLong)), a.packet(b.IPv4, string(fits)))
	if got := b.recvN(t, 1)[0]; len(got.Data) != len(fits) {
		t.Errorf("received %d bytes, want %d", len(got.Data), len(fits))
	}
	if n := a.counter(t, "tx_drop_too_long"); n != 1 {
		t.Errorf("too_long = %d, want 1", n)
	}
}

// testRemoved: once the netdev is removed, Send fails, and Recv blocks until Close.
func testRemoved(t *testing.T, a, b Host) {
	recv := make(chan error, 1)
	go func() {
		_, err := a.Recv(make([]transport.Packet, 1))
		recv <- err
	}()
	a.Underlay.Remove()
	s := a.await(t, "the netdev to be removed", func(s transport.State) bool { return !s.Present })
	if s.Up || len(s.Addrs) != 0 {
		t.Errorf("state %+v of a netdev that is gone", s)
	}
	if _, err := a.Send([]transport.Packet{a.packet(b.IPv4, "x")}); !errors.Is(err, hca.ErrIO) {
		t.Errorf("Send: %v, want hca.ErrIO", err)
	}
	if err := a.Join(group4); !errors.Is(err, hca.ErrIO) {
		t.Errorf("Join: %v, want hca.ErrIO", err)
	}
	select {
	case err := <-recv:
		t.Errorf("Recv returned when the netdev was removed: %v", err)
	default:
	}
	if err := a.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	checkClosed(t, "Recv", <-recv)
}

func testWaitChangeContext(t *testing.T, a, _ Host) {
	a.await(t, "the link to be up", isUp)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for {
		_, err := a.WaitChange(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatalf("WaitChange: %v, want the context's error", err)
		}
	}
}
