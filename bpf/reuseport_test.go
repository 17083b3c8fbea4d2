package bpf_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

// member opens a socket of the group that shares port 4791 on the loopback.
func member(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: int64(100 * time.Millisecond / time.Microsecond)}),
		unix.Bind(fd, &unix.SockaddrInet6{Port: 4791}),
	); err != nil {
		t.Fatal(err)
	}
	return fd
}

// The program gives a datagram, over IPv4 and IPv6, to the socket whose index its destination
// QPN begins with. It drops datagrams for an index without a socket, and short ones. A socket
// that is closed leaves the map.
func TestReuseportSelectsByQPN(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("this test must run as root, to load programs")
	}
	ns := nstest.New(t)
	ns.Run("ip", "link", "set", "lo", "up")
	ns.Do(func() {
		sockets, err := bpf.NewReuseportSockets()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(sockets)
		program, err := bpf.LoadReuseport(sockets)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(program)
		const indexes = 1 << bpf.ReuseportBits
		members := map[int]int{0: member(t), 5: member(t), indexes - 1: member(t)}
		defer func() {
			for _, fd := range members {
				_ = unix.Close(fd)
			}
		}()
		for index, fd := range members {
			if err := bpf.PutReuseportSocket(sockets, index, fd); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.SetsockoptInt(members[0], unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, program); err != nil {
			t.Fatal(err)
		}
		from, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(from)
		loopback4 := [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}
		send := func(to [16]byte, datagram []byte) {
			if err := unix.Sendto(from, datagram, 0, &unix.SockaddrInet6{Port: 4791, Addr: to}); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
		expect := func(index int, want []byte) {
			t.Helper()
			for i, fd := range members {
				n, _, err := unix.Recvfrom(fd, make([]byte, 64), 0)
				switch {
				case i == index && (err != nil || n != len(want)):
					t.Errorf("socket %d: %d bytes, error %v, want %d", i, n, err, len(want))
				case i != index && err == nil:
					t.Errorf("socket %d received a datagram for %d", i, index)
				}
			}
		}
		for _, to := range [][16]byte{loopback4, {15: 1}} {
			for index := range members {
				datagram := make([]byte, 12)
				datagram[5] = byte(index << (8 - bpf.ReuseportBits))
				send(to, datagram)
				expect(index, datagram)
			}
			send(to, []byte{5: 7 << (8 - bpf.ReuseportBits), 11: 0})
			expect(-1, nil)
			send(to, make([]byte, 5))
			expect(-1, nil)
		}

		if err := unix.Close(members[5]); err != nil {
			t.Fatal(err)
		}
		delete(members, 5)
		send(loopback4, []byte{5: 5 << (8 - bpf.ReuseportBits), 11: 0})
		expect(-1, nil)
	})
}
