package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// bindings are the ways to bind UDP port 4791 that would divert the underlay's
// datagrams from the daemon, or prevent the daemon from binding the port.
var bindings = []struct {
	name   string
	addr   netip.Addr
	device string // SO_BINDTODEVICE, set first; "": none
	option int    // of SOL_SOCKET, set first; 0: none
}{
	{"any IPv4 address", netip.IPv4Unspecified(), "", 0},
	{"any IPv6 address", netip.IPv6Unspecified(), "", 0},
	{"loopback address", netip.AddrFrom4([4]byte{127, 0, 0, 1}), "", 0},
	{"underlay address", netip.AddrFrom4([4]byte{192, 0, 2, 1}), "", 0},
	{"group address", groupAddr, "", 0},
	{"underlay device", netip.IPv4Unspecified(), nstest.Dev, 0},
	{"address and device", netip.AddrFrom4([4]byte{192, 0, 2, 1}), nstest.Dev, 0},
	{"SO_REUSEADDR", netip.IPv4Unspecified(), nstest.Dev, unix.SO_REUSEADDR},
	{"SO_REUSEPORT", netip.IPv6Unspecified(), nstest.Dev, unix.SO_REUSEPORT},
}

// tryBinding binds a socket to a port in the i-th way. The caller closes it.
func tryBinding(i int, port uint16) (fd int, err error) {
	b := bindings[i]
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(port), Addr: b.addr.As16()})
	if b.addr.Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: b.addr.As4()}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if b.device != "" {
		err = os.NewSyscallError("SO_BINDTODEVICE", unix.BindToDevice(fd, b.device))
	}
	if err == nil && b.option != 0 {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.option, 1))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, addr))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// asStranger runs f in the host's namespace on a thread with uid 65534 and without
// capabilities. The returned function waits for the end of f.
func (h *host) asStranger(f func()) (wait func()) {
	h.tb.Helper()
	ready := make(chan error, 1)
	wait = apart(func() {
		err := h.enter()
		if err == nil {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); errno != 0 {
				err = errno
			}
		}
		ready <- err
		if err == nil {
			f()
		}
	})
	if err := <-ready; err != nil {
		h.tb.Fatalf("become uid %d in the host's namespace: %v", stranger, err)
	}
	return wait
}

// apart runs f on a thread of its own, which f may change, and which remains until the process ends:
// if it ended, the kernel would kill the processes that it has started before (Pdeathsig).
func apart(f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		f()
		close(done)
		select {}
	}()
	return func() { <-done }
}

// enter moves the calling thread to the host's network namespace.
func (h *host) enter() error {
	ns, err := os.Open(h.Path())
	if err != nil {
		return err
	}
	return errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
}

// A local user without capabilities keeps trying to bind port 4791 in every way while the
// device is reset ten times, and rests during ten resets in between. Each try finds the port in use, although the same
// way works for another port, and the resets take about as long as without the user.
func TestPortStaysOursAcrossResets(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	const (
		resets     = 10
		scheduling = 20 * time.Millisecond // the delay that the user's thread may cause on a busy machine
	)
	a, b := twoJoined(t)
	events := a.daemon.followEvents()
	reset := func() (outage time.Duration) {
		n := events.len()
		a.daemon.requirePost("/v1/reset", map[string]string{"scope": "device"})
		var end event
		events.wait(t, n, recoveryLimit, "reset", func(e event) bool {
			end = e
			return e.ends() && e.Scope == ifName
		})
		return end.outage()
	}
	var stop atomic.Bool
	var rests sync.Mutex // held: the user does not try
	var tries int
	wrong := map[string]int{} // unexpected outcomes
	try := func(i int, port uint16, want error) {
		fd, err := tryBinding(i, port)
		if !errors.Is(err, want) {
			wrong[fmt.Sprintf("%s, port %d: %v", bindings[i].name, port, err)]++
		}
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	wait := a.asStranger(func() {
		for i := range bindings {
			try(i, roce.Port+1, nil)
		}
		for ; !stop.Load(); tries++ {
			rests.Lock()
			try(tries%len(bindings), roce.Port, unix.EADDRINUSE)
			rests.Unlock()
		}
	})
	var alone, attacked []time.Duration
	for range resets { // in turn, so that others delay both alike
		rests.Lock()
		alone = append(alone, reset())
		rests.Unlock()
		attacked = append(attacked, reset())
	}
	stop.Store(true)
	wait()

	t.Logf("%d tries; outages %s without them, %s with them (median/worst)", tries, figures(alone), figures(attacked))
	if tries < len(bindings)*resets || len(wrong) > 0 {
		t.Errorf("outcomes of %d tries other than %v: %v", tries, unix.EADDRINUSE, wrong)
	}
	if limit := 10*median(alone) + scheduling; median(attacked) > limit {
		t.Errorf("median outage %v, limit %v (alone: %v)", median(attacked), limit, median(alone))
	}
	if worst := 10 * goals[resetDevice]; maxOf(attacked) > worst {
		t.Errorf("outages %v, limit %v", attacked, worst)
	}
	t.Logf("the peer reaches the last queue pair after %v", b.waitReaches(a).Round(time.Millisecond))
	b.ping(a)
}

func maxOf(all []time.Duration) (most time.Duration) {
	for _, d := range all {
		most = max(most, d)
	}
	return most
}

// findHolder is the command that names the processes on the port. The daemon's sandbox hides them.
const findHolder = "ss -ulpn sport = :4791"

// A daemon that starts while another process has the port says so and how to find that process,
// waits, and comes up once the port is free.
func TestStartWaitsForThePort(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	a, b := twoJoined(t)
	a.daemon.stop()
	release := make(chan struct{})
	bound := make(chan error, 1)
	wait := a.asStranger(func() {
		fd, err := tryBinding(0, roce.Port)
		bound <- err
		<-release
		_ = unix.Close(fd)
	})
	if err := <-bound; err != nil {
		t.Fatalf("the port of a stopped daemon: %v", err)
	}
	a.start()
	eventually(t, startLimit, "the status says how to find the holder", func() bool {
		i := a.iface()
		return i.State != "up" && strings.Contains(i.Reason, findHolder)
	})
	if out := a.Run("sh", "-c", findHolder); !strings.Contains(out, fmt.Sprintf("pid=%d,", os.Getpid())) {
		t.Errorf("%s: %s, want this process", findHolder, out)
	}
	time.Sleep(2 * time.Second) // two more tries, which are not logged
	if n := strings.Count(a.daemon.log.String(), "cannot open device"); n != 1 {
		t.Errorf("%d log lines report that the device cannot be opened, want 1:\n%s", n, a.daemon.log)
	}
	close(release)
	wait()
	freed := time.Now()
	a.waitCarrier()
	t.Logf("up %v after the port was free", time.Since(freed))
	b.waitReaches(a)
}
