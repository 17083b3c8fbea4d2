package udp

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// watched returns a watcher of a netdev in a new namespace.
func watched(t *testing.T) (*nstest.Namespace, *watcher) {
	t.Helper()
	ns, _ := nstest.Pair(t, 1500)
	var w *watcher
	ns.Do(func() {
		var err error
		if w, err = newWatcher(nstest.Dev); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(w.Close)
	return ns, w
}

// junk returns a forged message that reports a netdev as new (linux/rtnetlink.h).
func junk(index int) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+4:], uint32(index))
	return b
}

// Any message from another process to the group of links is ignored.
func TestMessagesOfOtherProcessesAreIgnored(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, w := watched(t)
	ns.Do(func() {
		e, err := kernel.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		fd := netlinkSocket(t)
		send(t, fd, junk(w.index))
		if yes, err := e.Drain(w.concerns); yes || err != nil {
			t.Errorf("a message of this process: %v, %v; want it ignored", yes, err)
		}
		l, err := netlink.LinkByName(nstest.Dev)
		if err == nil {
			err = netlink.LinkSetMTU(l, 1400)
		}
		if err != nil {
			t.Fatal(err)
		}
		if yes, err := e.Drain(w.concerns); !yes || err != nil {
			t.Errorf("a message of the kernel: %v, %v; want it to count", yes, err)
		}
	})
}

func netlinkSocket(t *testing.T) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func send(t *testing.T, fd int, msg []byte) {
	t.Helper()
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)}
	if err := unix.Sendto(fd, msg, 0, to); err != nil {
		t.Fatal(err)
	}
}

// 20,000 messages a second from another process cost about 7 % of a processor. Reading
// each of them would cost 111 %.
func TestJunkMessagesCostLittle(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const rate, runs, limit = 20_000, 2 * time.Second, 0.6
	ns, w := watched(t)
	ns.Do(func() { // on its own thread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		fd := netlinkSocket(t)
		msg := junk(w.index)
		before := cpuTime(t, unix.RUSAGE_SELF) - cpuTime(t, unix.RUSAGE_THREAD)
		start := time.Now()
		for sent := 0; time.Since(start) < runs; time.Sleep(time.Millisecond) {
			for ; sent < int(time.Since(start).Seconds()*rate); sent++ {
				send(t, fd, msg)
			}
		}
		used := cpuTime(t, unix.RUSAGE_SELF) - cpuTime(t, unix.RUSAGE_THREAD) - before
		share := used.Seconds() / time.Since(start).Seconds()
		t.Logf("%d messages/s cost %.1f %% of a processor", rate, 100*share)
		if share > limit {
			t.Errorf("%d messages/s cost %.1f %% of a processor, want less than %.0f %%", rate, 100*share, 100*limit)
		}
	})
}

// cpuTime returns the processor time that this process or thread has used.
func cpuTime(t *testing.T, who int) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// However often the netdev changes, its state is read at most 20 times a second
// after a burst. The first change is published at once, and the last one is not missed.
func TestReadingsAreCoalesced(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, first := watched(t)
	var readings atomic.Uint64
	var w *watcher
	ns.Do(func() {
		var err error
		w, err = startWatcher(first.index, func(index int) (transport.State, error) {
			readings.Add(1)
			return listState(index)
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	defer w.Close()
	time.Sleep(4 * kernel.ReadingPause) // lets the changes pass that come with opening
	readings.Store(0)
	start := time.Now()
	last := 0
	ns.Do(func() {
		l, err := netlink.LinkByName(nstest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		for changes := 0; time.Since(start) < time.Second; changes++ {
			last = 1400 + changes%100
			if err := netlink.LinkSetMTU(l, last); err != nil {
				t.Fatal(err)
			}
			if changes == 0 {
				changed := time.Now() // other tests may have kept the kernel's lock until now
				awaitMTU(t, w, last)
				took := time.Since(changed)
				t.Logf("the first change was published after %v", took)
				if took > 10*kernel.ReadingPause {
					t.Errorf("the first change was published after %v, want %v at most", took, 10*kernel.ReadingPause)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	awaitMTU(t, w, last)
	n := readings.Load()
	limit := uint64(time.Since(start)/kernel.ReadingPause) + kernel.ReadingBurst + 2
	t.Logf("%d readings in %v", n, time.Since(start).Round(time.Millisecond))
	if n > limit {
		t.Errorf("%d readings in %v, want at most %d", n, time.Since(start), limit)
	}
}

// A flood of messages from another process to every netlink port of the namespace does not
// prevent the watcher from noticing changes.
func TestJunkToItsPortsDoesNotBlindTheWatcher(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, w := watched(t)
	ns.Do(func() {
		fd := netlinkSocket(t)
		sent := 0
		for range 100 {
			for _, port := range routePorts(t) {
				err := unix.Sendto(fd, junk(w.index), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
				if err != nil && !errors.Is(err, unix.ECONNREFUSED) { // a port that refuses the message is fine
					t.Fatalf("send to port %d: %v", port, err)
				}
				sent++
			}
		}
		if sent < 100 {
			t.Fatalf("%d messages sent: the watcher's port was not found", sent)
		}
	})
	ns.Run("ip", "link", "set", nstest.Dev, "mtu", "1400")
	awaitMTU(t, w, 1400)
}

// routePorts returns the ports of NETLINK_ROUTE in the calling thread's namespace
// (net/netlink/af_netlink.c, netlink_seq_show).
func routePorts(t *testing.T) (ports []uint32) {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		const protocol, port = 1, 2
		f := strings.Fields(line)
		if n, err := strconv.ParseUint(f[port], 10, 32); err == nil && f[protocol] == "0" && n != 0 {
			ports = append(ports, uint32(n))
		}
	}
	return ports
}

func awaitMTU(t *testing.T, w *watcher, mtu int) {
	t.Helper()
	for end := time.Now().Add(200 * kernel.ReadingPause); w.State().MTU != mtu; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the watcher has MTU %d, want %d", w.State().MTU, mtu)
		}
	}
}

// A failed list is retried without another notification.
func TestFailedListIsTakenAgain(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var failures atomic.Int32
	ns.Do(func() {
		link, err := netlink.LinkByName(nstest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		w, err := startWatcher(link.Attrs().Index, func(index int) (transport.State, error) {
			if failures.Add(-1) >= 0 {
				return transport.State{}, errors.New("no descriptor is free")
			}
			return listState(index)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		time.Sleep(4 * kernel.ReadingPause) // lets the changes pass that come with opening
		failures.Store(2*listTries + 1)
		if err := netlink.LinkSetMTU(link, 1400); err != nil {
			t.Fatal(err)
		}
		awaitMTU(t, w, 1400)
	})
}
