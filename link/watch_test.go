package link

import (
	"context"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// A watcher whose socket lost messages goes on: what it lost, and what comes
// later, is told.
func TestWatchSurvivesAnOverrun(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _, err := Open(Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	witness, watched := smallSocket(t), smallSocket(t)
	setMTU := func(mtu int) {
		t.Helper()
		l, err := netlink.LinkByName("ib0")
		if err == nil {
			err = netlink.LinkSetMTU(l, mtu)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for mtu := 1300; mtu < 1350; mtu++ {
		setMTU(mtu)
	}
	if _, _, err := witness.Receive(); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("no overrun: %v", err)
	}
	witness.Close()
	w := &watcher{tap: tap, sock: watched, out: make(chan State, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.run(ctx); close(done) }()
	for s := range w.out {
		if s.MTU == 1349 {
			break
		}
	}
	setMTU(1400)
	for s := range w.out {
		if s.MTU == 1400 {
			break
		}
	}
	cancel()
	<-done
}

// smallSocket subscribes with the least buffer that the kernel has.
func smallSocket(t *testing.T) *nl.NetlinkSocket {
	t.Helper()
	sock, err := subscribe()
	if err == nil {
		err = sock.SetReceiveBufferSize(1, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sock
}

func TestInterfaceOf(t *testing.T) {
	for _, c := range []struct {
		what string
		body []byte
		want int
	}{
		{"ifinfomsg", []byte{0, 0, 1, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 263},
		{"ifaddrmsg", []byte{2, 24, 0x80, 0, 7, 1, 0, 0}, 263},
		{"one byte short", []byte{2, 24, 0x80, 0, 7, 1, 0}, 0},
		{"nothing", nil, 0},
	} {
		if got := interfaceOf(c.body); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

func TestRefusedIsCountedByReason(t *testing.T) {
	var c tally
	for _, err := range []unix.Errno{unix.EINVAL, unix.EIO, unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, unix.EPERM} {
		c.refused(err)
	}
	want := Drops{WriteInvalid: 1, WriteDown: 1, WriteNoMem: 3, WriteOther: 1}
	if got := c.snapshot().Drops; got != want {
		t.Errorf("drops = %+v, want %+v", got, want)
	}
}
