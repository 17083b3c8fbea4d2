package link

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// A watcher whose socket has lost messages continues: it reports the lost and the later
// changes.
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
	never := func([]byte) bool { return false }
	if lost, err := witness.Drain(never); !lost || err != nil {
		t.Fatalf("no overrun: %v", err)
	}
	witness.Close()
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

// Messages from other processes have no effect. The kernel refuses those to the port,
// and those to a group cause no reading.
func TestOnlyTheKernelIsHeard(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	w, readings := countingWatch(t, tap)
	state := <-w.out
	before := readings.Load()

	junk, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(junk)
	msg := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(msg[unix.SizeofNlMsghdr+4:], uint32(state.Index))
	requests, err := tap.dev.nl.socket.Socket.GetPid()
	if err != nil {
		t.Fatal(err)
	}
	const groups = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1) | 1<<(unix.RTNLGRP_NSID-1)
	for range 100 {
		for what, port := range map[string]uint32{"events": portOf(t, w.events), "requests": requests} {
			to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}
			if err := unix.Sendto(junk, msg, unix.MSG_DONTWAIT, to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("a message to the port of %s: %v, want ECONNREFUSED", what, err)
			}
		}
		if err := unix.Sendto(junk, msg, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			t.Fatalf("a message to the groups: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(3 * readingPause)
	if n := readings.Load() - before; n != 0 {
		t.Errorf("%d readings after messages of another process, want none", n)
	}
	ip(t, "link", "set", "ib0", "mtu", "1300")
	if s := <-w.out; s.MTU != 1300 {
		t.Errorf("state = %+v, want MTU 1300", s)
	}
}

// However often the interface changes, it is read at most 20 times a second. The first
// change is read at once, and the last one is not missed.
func TestReadingsAreCoalesced(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	w, readings := countingWatch(t, tap)
	<-w.out
	time.Sleep(readingDelay + readingPause) // idle, even if the first reading took long
	l, err := netlink.LinkByName("ib0")
	if err != nil {
		t.Fatal(err)
	}
	setMTU := func(mtu int) {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			t.Fatal(err)
		}
	}
	before := readings.Load()
	setMTU(1400)
	start := time.Now() // other tests may have kept the kernel's lock until now
	<-w.out
	first := time.Since(start)
	t.Logf("the first change was published after %v", first.Round(time.Microsecond))
	if first > 10*readingPause {
		t.Errorf("the first change was published after %v, want %v at most", first, 10*readingPause)
	}
	changes := 0
	for ; time.Since(start) < time.Second; changes++ {
		setMTU(1300 + changes%50)
		time.Sleep(time.Millisecond)
	}
	setMTU(1299)
	for s := range w.out {
		if s.MTU == 1299 {
			break
		}
	}
	took, n := time.Since(start), readings.Load()-before
	t.Logf("%d changes cost %d readings in %v", changes, n, took.Round(time.Millisecond))
	if most := int64(took/readingPause) + 2; n > most {
		t.Errorf("%d readings, want %d at most", n, most)
	}
}

func TestUntilNext(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{0, readingPause},
		{time.Millisecond, readingPause - time.Millisecond},
		{10 * time.Millisecond, 190 * time.Millisecond}, // 5 % of the time
		{time.Minute, readingDelay},
	} {
		if got := untilNext(c.took); got != c.want {
			t.Errorf("after %v: %v, want %v", c.took, got, c.want)
		}
	}
}

// countingWatch watches an interface and counts how often it is read.
func countingWatch(t *testing.T, tap *TAP) (*watcher, *atomic.Int64) {
	t.Helper()
	e, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	w := &watcher{events: e, out: make(chan State, 1), state: func() (State, error) { n.Add(1); return tap.State() }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w, &n
}

// portOf returns the port ID of a socket.
func portOf(t *testing.T, e *kernel.Notifications) (id uint32) {
	t.Helper()
	conn, err := e.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Control(func(fd uintptr) {
		if addr, err := unix.Getsockname(int(fd)); err == nil {
			id = addr.(*unix.SockaddrNetlink).Pid
		}
	})
	if err != nil || id == 0 {
		t.Fatalf("port %d, %v", id, err)
	}
	return id
}

// smallSocket subscribes with the smallest buffer that the kernel allows.
func smallSocket(t *testing.T) *kernel.Notifications {
	t.Helper()
	e, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := e.SyscallConn()
	if err == nil {
		err = errors.Join(err, conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
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

// An interface that goes down and up between two states has gone down.
func TestWatchCountsDowns(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	states, err := tap.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const times = 3
	for range 1 + times {
		ip(t, "link", "set", "ib0", "up")
		ip(t, "link", "set", "ib0", "down")
	}
	var last State
	for last = range states {
		if last.Downs == 1+times && !last.Up {
			return
		}
	}
	t.Errorf("the last state is %+v, want %d downs", last, 1+times)
}
