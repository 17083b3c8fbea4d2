package link

import (
	"context"
	"testing"

	"github.com/vishvananda/netlink"
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
	never := func(event) bool { return false }
	if lost, err := witness.drain(never); !lost || err != nil {
		t.Fatalf("no overrun: %v", err)
	}
	witness.close()
	w := &watcher{state: tap.State, events: watched, out: make(chan State, 1)}
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
func smallSocket(t *testing.T) *events {
	t.Helper()
	e, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestParseEvent(t *testing.T) {
	header := []byte{32, 0, 0, 0, unix.RTM_NEWLINK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
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
		want := event{kind: unix.RTM_NEWLINK, index: c.want}
		if got := parseEvent(append(header[:len(header):len(header)], c.body...)); got != want {
			t.Errorf("%s: %+v, want %+v", c.what, got, want)
		}
	}
	if got := parseEvent(header[:unix.SizeofNlMsghdr-1]); got != (event{}) {
		t.Errorf("a cut header: %+v", got)
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
