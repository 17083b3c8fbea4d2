package udp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// modes are the ways to use the port.
var modes = map[string]int{ // lanes
	"exclusive": 1,
	"lanes":     4,
}

// A process with CAP_NET_ADMIN can destroy the sockets. The kernel then detaches them from the netdev
// and from their group. The transport fails instead of receiving nothing, or datagrams of other
// netdevs, and the next one has new sockets.
func TestDestroyedSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for name, n := range modes {
		t.Run(name, func(t *testing.T) {
			nsA, nsB := nstest.Pair(t, 1500)
			remote := openHost(t, nsB, 1, udp.Config{})
			cfg := udp.Config{Reserve: new(udp.Reserve), Lanes: n}
			t.Cleanup(func() { _ = cfg.Reserve.Close() })
			lanes := openLanes(t, nsA, cfg)
			converse(t, lanes, remote)
			reopen := func(times uint64) {
				t.Helper()
				for _, l := range lanes {
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
				}
				lanes = openLanes(t, nsA, cfg)
				if n := cfg.Reserve.Destroyed(); n != times {
					t.Fatalf("the sockets were bound again %d times, want %d", n, times)
				}
				converse(t, lanes, remote)
			}
			reopen(0)

			if n := nsA.DestroySockets(t, udp.Port); n != len(lanes) {
				t.Fatalf("destroyed %d sockets, want %d", n, len(lanes))
			}
			for i, l := range lanes {
				patience := time.AfterFunc(transporttest.Patience, func() { _ = l.Close() })
				defer patience.Stop()
				for range 2 {
					if n, err := l.Recv(make([]transport.Packet, 1)); n != 0 || !errors.Is(err, hca.ErrIO) {
						t.Errorf("lane %d: Recv = %d, %v, want hca.ErrIO", i, n, err)
					}
				}
			}
			reopen(1)

			for i, l := range lanes {
				if n := nsA.DestroySockets(t, l.SrcPort()); n != 1 {
					t.Fatalf("destroyed %d sockets that send, want 1", n)
				}
				for range 2 {
					if n, err := l.Send([]transport.Packet{greeting(remote.IPv4, 0)}); n != 0 || !errors.Is(err, hca.ErrIO) {
						t.Errorf("lane %d: Send = %d, %v, want hca.ErrIO", i, n, err)
					}
				}
			}
			reopen(2)

			for _, l := range lanes {
				_ = l.Close()
			}
			nsA.DestroySockets(t, udp.Port)
			reopen(3)
			for _, l := range lanes {
				_ = l.Close()
				if _, err := l.Recv(make([]transport.Packet, 1)); !errors.Is(err, hca.ErrClosed) {
					t.Errorf("Recv after Close: %v, want hca.ErrClosed", err)
				}
			}
		})
	}
}

// datagram returns one for a QPN, with a text.
func datagram(to hca.QPN, text string) []byte {
	return append([]byte{0, 0, 0, 0, 0, byte(to >> 16), byte(to >> 8), byte(to)}, text...)
}

// expect checks that a host receives a datagram from a source port, and nothing before it.
func expect(t *testing.T, h transporttest.Host, port uint16, text string) {
	t.Helper()
	got := recvOne(t, h)
	if string(got.Data[8:]) != text || got.SrcPort != port {
		t.Errorf("received %q from port %d, want %q from port %d", got.Data[8:], got.SrcPort, text, port)
	}
}

// greeting is a datagram from host 0.
func greeting(to netip.Addr, lane int) transport.Packet {
	src := netip.MustParseAddr(nstest.IPv4(0))
	if to.Is6() {
		src = netip.MustParseAddr(nstest.IPv6(0))
	}
	return transport.Packet{Src: src, Dst: to, Data: datagram(1, fmt.Sprintf("lane %d", lane))}
}

// converse sends datagrams of both families from each lane of host 0, unicast and multicast ones
// back, and checks that they arrive.
func converse(t *testing.T, lanes []*udp.Transport, remote transporttest.Host) {
	t.Helper()
	for _, group := range []netip.Addr{group4, group6} {
		if err := lanes[0].Join(group); err != nil {
			t.Fatal(err)
		}
	}
	for _, ends := range [][3]netip.Addr{{remote.IPv4, group4, netip.MustParseAddr(nstest.IPv4(0))}, {remote.IPv6, group6, netip.MustParseAddr(nstest.IPv6(0))}} {
		for i, l := range lanes {
			sendOn(t, l, greeting(ends[0], i))
			expect(t, remote, l.SrcPort(), fmt.Sprintf("lane %d", i))
		}
		at := int(remote.SrcPort()) % len(lanes)
		sendOne(t, remote, transport.Packet{Src: ends[0], Dst: ends[2], Data: datagram(1, "back")})
		expect(t, transporttest.Host{Transport: lanes[at]}, remote.SrcPort(), "back")
		sendOne(t, remote, transport.Packet{Src: ends[0], Dst: ends[1], Data: datagram(hca.QPNMulticast, "to all")})
		expect(t, transporttest.Host{Transport: lanes[0]}, remote.SrcPort(), "to all")
	}
}
