package rdma

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// limit is how long a test waits for an expected event, quiet how long it waits to see
// that an event does not happen.
const (
	limit = 10 * time.Second
	quiet = 200 * time.Millisecond
)

// watching runs a watcher of a subsystem until the end of the test, and checks that it
// ends.
func watching(t *testing.T, subsystem string) *watcher {
	t.Helper()
	w, err := newWatcher([]string{subsystem})
	must(t, err)
	run(t, w)
	return w
}

// run runs a watcher until the end of the test.
func run(t *testing.T, w *watcher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	go w.run(ctx)
	t.Cleanup(func() {
		cancel()
		for range w.changed { //nolint:revive // a hint may be pending
		}
	})
}

func hinted(t *testing.T, changed <-chan struct{}, wait time.Duration) bool {
	t.Helper()
	select {
	case _, ok := <-changed:
		if !ok {
			t.Fatal("the watcher has ended")
		}
		return true
	case <-time.After(wait):
		return false
	}
}

// The kernel's events of a subsystem cause hints; those of other subsystems do not. The
// test uses netdevs instead of RDMA devices, because their events are sent in the same
// way.
func TestKernelEventsCauseHints(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	net, other := watching(t, "net"), watching(t, "infiniband")
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	must(t, netlink.LinkAdd(pair))
	if !hinted(t, net.changed, limit) {
		t.Fatal("a new netdev caused no hint")
	}
	for hinted(t, net.changed, quiet) { //nolint:revive // its queues cause events as well
	}
	must(t, netlink.LinkDel(pair))
	if !hinted(t, net.changed, limit) {
		t.Fatal("the removal of a netdev caused no hint")
	}
	if hinted(t, other.changed, quiet) {
		t.Error("an event of another subsystem caused a hint")
	}
}

// Events from a process are refused, even if their text is exactly the kernel's.
func TestWatchRefusesForgeries(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	w := watching(t, "infiniband_verbs")
	forger, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	must(t, err)
	defer unix.Close(forger)
	request := nl.NewNetlinkRequest(unix.NLMSG_MIN_TYPE, 0) // which the kernel forwards as if it were its own
	request.AddRawData(removal)
	for _, c := range []struct {
		name string
		msg  []byte
		to   unix.SockaddrNetlink
		err  error
	}{
		{"to it alone", removal, unix.SockaddrNetlink{Pid: portOf(t, w.sources[0])}, unix.ECONNREFUSED},
		{"to all", removal, unix.SockaddrNetlink{Groups: groupUevent}, nil},
		{"by the kernel, to all", request.Serialize(), unix.SockaddrNetlink{}, nil}, // uevent_net_rcv_skb, lib/kobject_uevent.c
	} {
		c.to.Family = unix.AF_NETLINK
		if err := unix.Sendto(forger, c.msg, 0, &c.to); !errors.Is(err, c.err) {
			t.Errorf("sent %s: %v, want %v", c.name, err, c.err)
		}
		if hinted(t, w.changed, quiet) {
			t.Errorf("a forged event caused a hint: sent %s", c.name)
		}
	}
}

// There are at most 20 hints a second after a burst, however many events come. The first
// hint comes at once.
func TestHintsAreCoalesced(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	w := watching(t, "net")
	stop := make(chan struct{})
	var flapping sync.WaitGroup
	var links int
	var added atomic.Pointer[time.Time] // when the first pair was added; other tests may keep the kernel's lock
	start := time.Now()
	flapping.Go(func() {
		for ; time.Since(start) < time.Second || links < 10; links++ {
			pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
			err := netlink.LinkAdd(pair)
			now := time.Now()
			added.CompareAndSwap(nil, &now)
			if err := errors.Join(err, netlink.LinkDel(pair)); err != nil {
				t.Error(err)
				break
			}
		}
		close(stop)
	})
	hints := 0
	for more := true; more; {
		select {
		case <-w.changed:
			hints++
			if at := added.Load(); hints == 1 && at != nil && time.Since(*at) > 10*kernel.ReadingPause {
				t.Errorf("the first hint came %v after the first event", time.Since(*at))
			}
		case <-stop:
			more = false
		}
	}
	flapping.Wait()
	took := time.Since(start)
	most := int(took/kernel.ReadingPause) + kernel.ReadingBurst + 2
	t.Logf("%d links came and went, %d hints in %v", links, hints, took.Round(time.Millisecond))
	if hints < 1 || hints > most {
		t.Errorf("%d hints for %d links in %v, want 1 to %d", hints, links, took, most)
	}
}

// A flood of forged events can only fill the queue, which causes a burst of hints and
// then 20 a second at most. It hides no event of the kernel.
func TestForgedFloodHidesNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	w, err := newWatcher([]string{"net", "infiniband_verbs"})
	must(t, err)
	run(t, w)
	forger, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	must(t, err)
	defer unix.Close(forger)
	const least = 1000 // events, however slow the machine is
	var sent int
	done := make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		for ; sent < least || time.Since(start) < time.Second; sent++ {
			if err := unix.Sendto(forger, removal, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUevent}); err != nil {
				t.Errorf("send a forged event: %v", err)
				return
			}
			if sent%200 == 0 { // at most 20,000 a second
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	hints := 0
	for flooding := true; flooding; {
		select {
		case <-w.changed:
			hints++
		case <-done:
			flooding = false
		}
	}
	took := time.Since(start)
	most := int(took/kernel.ReadingPause) + kernel.ReadingBurst + 2
	t.Logf("%d forged events in %v: %d hints", sent, took.Round(time.Millisecond), hints)
	if hints > most || sent < least {
		t.Errorf("%d hints for %d forged events in %v, want at most %d", hints, sent, took, most)
	}
	for hinted(t, w.changed, quiet) { //nolint:revive // the last hint of the flood
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}))
	if !hinted(t, w.changed, limit) {
		t.Error("an event of the kernel after the flood caused no hint")
	}
}

// If events were lost because the queue was full, they may have been of this subsystem,
// so they cause a hint.
func TestLostEventsCauseAHint(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	w, err := newWatcher([]string{"infiniband"})
	must(t, err)
	control(t, w.sources[0], func(fd int) {
		must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)) // the minimum
	})
	for range 10 {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
		must(t, netlink.LinkAdd(pair))
		must(t, netlink.LinkDel(pair))
	}
	run(t, w)
	if !hinted(t, w.changed, limit) {
		t.Error("lost events caused no hint")
	}
}

func portOf(t *testing.T, f syscall.Conn) (port uint32) {
	t.Helper()
	control(t, f, func(fd int) {
		addr, err := unix.Getsockname(fd)
		must(t, err)
		port = addr.(*unix.SockaddrNetlink).Pid
	})
	return port
}

func control(t *testing.T, f syscall.Conn, do func(fd int)) {
	t.Helper()
	conn, err := f.SyscallConn()
	must(t, err)
	must(t, conn.Control(func(fd uintptr) { do(int(fd)) }))
}

// A source that fails ends the watcher, because with the others alone it would miss
// events without notice.
func TestWatchEndsWithAnySource(t *testing.T) {
	w, err := newWatcher(subsystems)
	must(t, err)
	second, err := kernel.Subscribe(unix.NETLINK_KOBJECT_UEVENT, groupUevent)
	must(t, err)
	w.sources = append(w.sources, source{second, w.countsUevent})
	run(t, w)
	must(t, second.Close())
	for end := time.After(limit); ; {
		select {
		case _, ok := <-w.changed:
			if !ok {
				return
			}
		case <-end:
			t.Fatalf("the watcher did not end within %s", limit)
		}
	}
}

func TestWatchBeginsAndEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	changed, err := Watch(ctx)
	must(t, err)
	if !hinted(t, changed, limit) {
		t.Fatal("no hint at the start")
	}
	cancel()
	select {
	case <-changed:
	case <-time.After(limit):
		t.Fatalf("the watcher did not end within %s", limit)
	}
}

// A kernel without RDMA is distinguished from a kernel without devices, and from an
// error.
func TestKernelWithoutRDMA(t *testing.T) {
	for _, errno := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if err := linkError("list", errno); !errors.Is(err, ErrNoSubsystem) || !errors.Is(err, hca.ErrNoDevice) {
			t.Errorf("%v: %v, want ErrNoSubsystem", errno, err)
		}
	}
	if err := linkError("list", unix.EPERM); !errors.Is(err, unix.EPERM) || errors.Is(err, hca.ErrNoDevice) {
		t.Error(err)
	}
	if _, err := List(); err != nil && !errors.Is(err, ErrNoSubsystem) {
		t.Errorf("on this machine: %v", err)
	}
}
