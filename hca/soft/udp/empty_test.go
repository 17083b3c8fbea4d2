package udp

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Emptying a socket ends however fast datagrams arrive, because the socket refuses them.
// That holds for a socket that was just bound too.
func TestSocketRefusesWhileItIsEmptied(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	s, err := openReceiver(lo.Index, new(Config), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s.fd)
	from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(from)
	send := func() {
		to := &unix.SockaddrInet4{Port: Port, Addr: [4]byte{127, 0, 0, 1}}
		if err := unix.Sendto(from, []byte{1}, 0, to); err != nil {
			t.Fatal(err)
		}
	}
	queued := func() bool {
		_, _, err := unix.Recvfrom(s.fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC|unix.MSG_PEEK)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return err == nil
	}
	dropped := func() uint32 {
		n, ok := socketDrops(uintptr(s.fd))
		if !ok {
			t.Fatal("SO_MEMINFO is not available")
		}
		return n
	}
	const limit = 10 * time.Second
	// The filter of a transport refuses datagrams that come over lo.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
		t.Fatal(err)
	}
	send()
	for start := time.Now(); !queued(); time.Sleep(time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatal("the datagram did not arrive, so the test shows nothing")
		}
	}
	if err := empty(s.fd); err != nil {
		t.Fatal(err)
	}
	if queued() {
		t.Error("the queue is not empty")
	}
	before := dropped()
	send()
	for start := time.Now(); dropped() == before; time.Sleep(time.Millisecond) {
		if queued() {
			t.Fatal("a datagram that arrives later is queued, so a flood never ends")
		}
		if time.Since(start) > limit {
			t.Fatal("the datagram was neither queued nor dropped")
		}
	}
}
