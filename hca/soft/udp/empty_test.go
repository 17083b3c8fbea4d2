package udp

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Emptying a socket ends whatever arrives meanwhile: the socket refuses that, also
// one that was just bound.
func TestSocketRefusesWhileItIsEmptied(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	s, err := openReceiver(lo.Index, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.file.Close()
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
	queued := func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC|unix.MSG_PEEK)
		return !errors.Is(err, unix.EAGAIN)
	}
	err = s.raw.Control(func(fd uintptr) {
		send()
		if !queued(fd) {
			t.Fatal("nothing arrived: this shows nothing")
		}
		if err := empty(int(fd)); err != nil {
			t.Fatal(err)
		}
		if queued(fd) {
			t.Error("the queue is not empty")
		}
		if send(); queued(fd) {
			t.Error("a datagram that arrives meanwhile is queued, so a flood has no end")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
