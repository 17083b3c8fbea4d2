package udp

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/wire"
	"ipoibd/link/linktest/nstest"
)

// watched opens a watcher of a netdev in a namespace of its own.
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

// junk is a message that says that the netdev of an index is new (linux/rtnetlink.h).
func junk(index int) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+4:], uint32(index))
	return b
}

// A message of another process to the group of links is no news, whatever it says.
func TestMessagesOfOtherProcessesAreIgnored(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, w := watched(t)
	ns.Do(func() {
		e, err := subscribe(unix.RTNLGRP_LINK)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		fd := netlinkSocket(t)
		send(t, fd, junk(w.index))
		if yes, err := e.drain(w.concerns); yes || err != nil {
			t.Errorf("a message of this process counts as news of the netdev: %v, %v", yes, err)
		}
		l, err := netlink.LinkByName(nstest.Dev)
		if err == nil {
			err = netlink.LinkSetMTU(l, 1400)
		}
		if err != nil {
			t.Fatal(err)
		}
		if yes, err := e.drain(w.concerns); !yes || err != nil {
			t.Errorf("a message of the kernel counts as no news: %v, %v", yes, err)
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

// 20,000 messages a second of another process cost far less than a processor: some
// 7 %. Reading each of them cost 111 %.
func TestJunkMessagesCostLittle(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const rate, runs, limit = 20_000, 2 * time.Second, 0.6
	ns, w := watched(t)
	ns.Do(func() { // on a thread of its own
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

// cpuTime is the processor time of this process or thread.
func cpuTime(t *testing.T, who int) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// However often the netdev changes, its state is published at most 20 times a second
// after a burst; the first change at once, and the last one too.
func TestReadingsAreCoalesced(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, w := watched(t)
	time.Sleep(4 * readingPause) // what came with opening
	w.mu.Lock()
	first := w.version
	w.mu.Unlock()
	start := time.Now()
	mtu := 1400
	ns.Do(func() {
		l, err := netlink.LinkByName(nstest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		for ; time.Since(start) < time.Second; mtu = 1400 + (mtu+1)%100 {
			if err := netlink.LinkSetMTU(l, mtu); err != nil {
				t.Fatal(err)
			}
			if mtu == 1400 && w.current().MTU == 1500 { // the first one
				for w.current().MTU == 1500 && time.Since(start) < time.Second {
					time.Sleep(time.Millisecond)
				}
				took := time.Since(start)
				t.Logf("the first change was published after %v", took)
				if took > 10*readingPause {
					t.Errorf("the first change was published after %v", took)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	for end := time.Now().Add(time.Second); !slices.Contains([]int{mtu - 1, mtu + 99}, w.current().MTU); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("MTU %d is known, the last one is %d", w.current().MTU, mtu-1)
		}
	}
	w.mu.Lock()
	n := w.version - first
	w.mu.Unlock()
	limit := uint64(time.Since(start)/readingPause) + readingBurst + 2
	t.Logf("%d states published in %v", n, time.Since(start).Round(time.Millisecond))
	if n > limit {
		t.Errorf("%d states published in %v, want at most %d", n, time.Since(start), limit)
	}
}

// Messages that another process sends to every netlink port of the namespace do not
// blind the watcher.
func TestJunkToItsPortsDoesNotBlindTheWatcher(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, w := watched(t)
	ns.Do(func() {
		fd := netlinkSocket(t)
		for range 100 {
			for _, port := range routePorts(t) { // a port that refuses them is as good
				_ = unix.Sendto(fd, junk(w.index), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
			}
		}
	})
	ns.Run("ip", "link", "set", nstest.Dev, "mtu", "1400")
	awaitMTU(t, w, 1400)
}

// routePorts are the ports of NETLINK_ROUTE in the calling thread's namespace
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
	for end := time.Now().Add(20 * readingPause); w.current().MTU != mtu; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the watcher has MTU %d, want %d", w.current().MTU, mtu)
		}
	}
}

// A list that fails is taken again without another notification.
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
		w, err := startWatcher(link.Attrs().Index, func(index int) (wire.State, error) {
			if failures.Add(-1) >= 0 {
				return wire.State{}, errors.New("no descriptor is free")
			}
			return listState(index)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		time.Sleep(4 * readingPause) // what came with opening
		failures.Store(2*listTries + 1)
		if err := netlink.LinkSetMTU(link, 1400); err != nil {
			t.Fatal(err)
		}
		awaitMTU(t, w, 1400)
	})
}
