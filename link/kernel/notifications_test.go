package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Only the kernel sends messages with credentials, without a port and without a process.
func TestFromKernel(t *testing.T) {
	kernel, other := unix.UnixCredentials(&unix.Ucred{}), unix.UnixCredentials(&unix.Ucred{Pid: 1})
	for _, c := range []struct {
		name string
		from unix.Sockaddr
		oob  []byte
		want bool
	}{
		{"the kernel", &unix.SockaddrNetlink{}, kernel, true},
		{"a process's port", &unix.SockaddrNetlink{Pid: 7}, kernel, false},
		{"a process", &unix.SockaddrNetlink{}, other, false},
		{"no credentials", &unix.SockaddrNetlink{}, nil, false},
		{"garbage", &unix.SockaddrNetlink{}, kernel[:5], false},
		{"no address", nil, kernel, false},
		{"another family", &unix.SockaddrInet4{}, kernel, false},
	} {
		if got := fromKernel(c.from, c.oob); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// Drain ignores all messages of other processes to the group. It reports a message of the
// kernel, even if only its beginning fits into the buffer, and it reports a loss.
func TestDrain(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s, err := Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var heard []Interface
	drain := func() bool {
		t.Helper()
		heard = nil
		news, err := s.Drain(func(msg []byte) bool { heard = append(heard, ParseInterface(msg)); return true })
		if err != nil {
			t.Fatal(err)
		}
		return news
	}
	forger, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(forger)
	forged := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(forged, uint32(len(forged)))
	group := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)}
	if err := unix.Sendto(forger, forged, 0, group); err != nil {
		t.Fatal(err)
	}
	if drain() {
		t.Errorf("a message of another process was reported: %v", heard)
	}
	change := func() {
		t.Helper()
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetMTU(lo, lo.Attrs().MTU-1)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s.buf = range [][]byte{make([]byte, maxMessage), make([]byte, 24)} {
		change()
		if !drain() || heard[0].Kind != unix.RTM_NEWLINK || heard[0].Index != 1 {
			t.Errorf("a message of the kernel: %v, want it reported", heard)
		}
	}
	if err := s.conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // the minimum
	}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		change()
	}
	if news, err := s.Drain(func([]byte) bool { return false }); !news || err != nil {
		t.Errorf("after a loss: %v, %v", news, err)
	}
}

// A kernel without a group reports EINVAL. Close ends a Drain.
func TestSubscribeAndClose(t *testing.T) {
	if s, err := Subscribe(unix.NETLINK_ROUTE, 1000); err == nil {
		_ = s.Close()
		t.Error("joining group 1000 succeeded, want an error")
	}
	s, err := Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := s.Drain(func([]byte) bool { return false })
		for err == nil { // a message of this machine
			_, err = s.Drain(func([]byte) bool { return false })
		}
		ended <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("Drain returned nil after Close, want an error")
	}
}

func TestParseInterface(t *testing.T) {
	header := []byte{32, 0, 0, 0, unix.RTM_NEWLINK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		what string
		body []byte
		want int
		down bool
	}{
		{"ifinfomsg, down", []byte{0, 0, 1, 0, 7, 1, 0, 0, 0x42, 0, 1, 0, 0, 0, 0, 0}, 263, true},
		{"ifinfomsg, up", []byte{0, 0, 1, 0, 7, 1, 0, 0, 0x43, 0, 1, 0, 0, 0, 0, 0}, 263, false},
		{"ifaddrmsg", []byte{2, 24, 0x80, 0, 7, 1, 0, 0}, 263, false},
		{"one byte short", []byte{2, 24, 0x80, 0, 7, 1, 0}, 0, false},
		{"nothing", nil, 0, false},
	} {
		want := Interface{Kind: unix.RTM_NEWLINK, Index: c.want, Down: c.down}
		if got := ParseInterface(append(header[:len(header):len(header)], c.body...)); got != want {
			t.Errorf("%s: %+v, want %+v", c.what, got, want)
		}
	}
	if got := ParseInterface(header[:unix.SizeofNlMsghdr-1]); got != (Interface{}) {
		t.Errorf("a cut header: %+v", got)
	}
}
