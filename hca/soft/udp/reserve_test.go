package udp_test

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// canBind reports whether another socket can be bound to a port, on a netdev, or on none
// if its name is empty.
func canBind(t *testing.T, ns *nstest.Namespace, netdev string, addr [4]byte, port uint16) (ok bool) {
	t.Helper()
	ns.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if netdev != "" {
			if err := unix.BindToDevice(fd, netdev); err != nil {
				t.Fatal(err)
			}
		}
		// These options let two sockets share a port only if both have them.
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		if err != nil {
			t.Fatal(err)
		}
		ok = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: addr}) == nil
	})
	return ok
}

// Both ports stay bound from one transport to the next. The next one neither receives
// nor counts the datagrams that arrive in between.
func TestReserveKeepsThePort(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	var reserve udp.Reserve
	t.Cleanup(func() { _ = reserve.Close() })
	a := openHost(t, nsA, 0, udp.Config{Reserve: &reserve})
	b := openHost(t, nsB, 1, udp.Config{})
	send := func(text string) {
		sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: a.IPv4, Data: []byte(text)})
	}
	send("first")
	recvOne(t, a)
	ours, source := a.IPv4.As4(), a.SrcPort()
	for _, text := range []string{"second", "third"} {
		send("left in the queue")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			send("between transports")
		}
		for _, netdev := range []string{"", nstest.Dev} {
			for _, addr := range [][4]byte{{}, ours, {127, 0, 0, 1}, group4.As4()} {
				for _, port := range []uint16{udp.Port, source} {
					if canBind(t, nsA, netdev, addr, port) {
						t.Errorf("port %d can be bound on netdev %q, address %v", port, netdev, addr)
					}
				}
			}
		}
		if !canBind(t, nsA, "lo", [4]byte{}, udp.Port) {
			t.Error("the port is taken on another netdev")
		}
		a = openHost(t, nsA, 0, udp.Config{Reserve: &reserve})
		if a.SrcPort() != source {
			t.Errorf("source port %d, was %d", a.SrcPort(), source)
		}
		send(text)
		if got := recvOne(t, a); string(got.Data) != text {
			t.Errorf("received %q, want %q", got.Data, text)
		}
		if got := counterOf(t, a, "rx_packets"); got != 1 {
			t.Errorf("rx_packets = %d, want 1", got)
		}
		if got := counterOf(t, a, "socket_drops"); got != 0 {
			t.Errorf("socket_drops = %d, want 0", got)
		}
	}
	nsA.Do(func() {
		if _, err := udp.Open(udp.Config{Netdev: nstest.Dev, Reserve: &reserve}); !errors.Is(err, hca.ErrBusy) {
			t.Errorf("a second transport at the same time: %v, want hca.ErrBusy", err)
		}
	})
	if err := errors.Join(a.Close(), reserve.Close()); err != nil {
		t.Fatal(err)
	}
	for _, port := range []uint16{udp.Port, source} {
		if !canBind(t, nsA, "", [4]byte{}, port) {
			t.Errorf("port %d is still taken after Close", port)
		}
	}
}

// A netdev that is deleted and created again has another index. In between, the socket of
// the old netdev still keeps others from binding the port without a netdev.
func TestReserveFollowsTheNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.New(t), nstest.New(t)
	var reserve udp.Reserve
	t.Cleanup(func() { _ = reserve.Close() })
	for range 3 {
		nstest.Veth(t, nsA, nstest.Dev, nsB, nstest.Dev, 1500)
		addr(t, nsA, nstest.Dev, "10.0.0.1/24")
		addr(t, nsB, nstest.Dev, "10.0.0.2/24")
		a := openIn(t, nsA, udp.Config{Netdev: nstest.Dev, Reserve: &reserve})
		b := openIn(t, nsB, udp.Config{Netdev: nstest.Dev})
		src, dst := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
		if n, err := b.Send([]transport.Packet{{Src: src, Dst: dst, Data: []byte("hello")}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := a.Recv(make([]transport.Packet, 1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		nsA.Run("ip", "link", "del", nstest.Dev)
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		if canBind(t, nsA, "", [4]byte{}, udp.Port) {
			t.Error("the port can be bound while the netdev is away")
		}
	}
}
