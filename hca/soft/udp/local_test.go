package udp_test

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// Datagrams from another socket of the same host are not received, whatever address of
// the host they come from: the kernel drops and counts them. The other hosts of a group
// receive them, and this host receives theirs.
func TestDatagramsOfThisHostAreRefused(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, tt := range []struct {
		name    string
		reserve *udp.Reserve
	}{{"without Reserve", nil}, {"with Reserve", new(udp.Reserve)}} {
		t.Run(tt.name, func(t *testing.T) {
			nsA, nsB := nstest.Pair(t, 1500)
			nsA.Run("ip", "addr", "add", "172.17.0.1/32", "dev", "lo")
			nsA.AddIPv6("lo", "fd17::1/128")
			a, b := openHost(t, nsA, 0, udp.Config{Reserve: tt.reserve}), openHost(t, nsB, 1, udp.Config{})
			if tt.reserve != nil {
				t.Cleanup(func() { _ = tt.reserve.Close() })
			}
			for _, x := range []struct{ src, dst netip.Addr }{
				{netip.MustParseAddr("172.17.0.1"), group4},
				{a.IPv4, group4},
				{netip.MustParseAddr("fd17::1"), group6},
				{a.IPv6, group6},
				{netip.MustParseAddr("fd17::1"), a.IPv6},
				{a.IPv6, a.IPv6},
			} {
				if x.dst.IsMulticast() {
					if err := errors.Join(a.Join(x.dst), b.Join(x.dst)); err != nil {
						t.Fatal(err)
					}
				}
				before := counterOf(t, a, "socket_drops")
				nsA.Do(func() { sendLocally(t, x.src, x.dst) })
				if x.dst.IsMulticast() {
					if got := recvOne(t, b); got.Src != x.src {
						t.Errorf("host b received a packet of %s, want one of %s", got.Src, x.src)
					}
				}
				src := b.IPv4
				if !x.dst.Is4() {
					src = b.IPv6
				}
				sendOne(t, b, transport.Packet{Src: src, Dst: x.dst, Data: []byte("from b")})
				if got := recvOne(t, a); string(got.Data) != "from b" {
					t.Errorf("received %q from this host's own %s", got.Data, got.Src)
				}
				if n := counterOf(t, a, "socket_drops") - before; n != 1 {
					t.Errorf("%d datagrams from %s to %s were dropped as the host's own, want 1", n, x.src, x.dst)
				}
			}
		})
	}
}

// sendLocally sends a datagram from an ordinary socket, through the underlay.
func sendLocally(t *testing.T, src, dst netip.Addr) {
	t.Helper()
	l := index(t, nstest.Dev)
	family := unix.AF_INET6
	var from, to unix.Sockaddr = &unix.SockaddrInet6{Addr: src.As16()}, &unix.SockaddrInet6{Port: udp.Port, Addr: dst.As16(), ZoneId: uint32(l)}
	if src.Is4() {
		family = unix.AF_INET
		from, to = &unix.SockaddrInet4{Addr: src.As4()}, &unix.SockaddrInet4{Port: udp.Port, Addr: dst.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = unix.Bind(fd, from)
	if err == nil && src.Is4() {
		err = unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(l)})
	}
	if err == nil {
		err = unix.Sendto(fd, []byte("from a"), 0, to)
	}
	if err != nil {
		t.Fatalf("send from %s to %s: %v", src, dst, err)
	}
}

// index returns the index of a netdev in the calling thread's namespace.
func index(t *testing.T, name string) int {
	t.Helper()
	n, err := udp.FindNetdev(name)
	if err != nil {
		t.Fatal(err)
	}
	return n.Index
}
