package e2e

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// bindings are the ways to bind UDP port 4791 that take datagrams of the
// underlay away, or keep the daemon from binding it.
var bindings = []struct {
	name   string
	addr   unix.Sockaddr
	device string // bound to it first; "": to none
	option int    // of SOL_SOCKET, set first; 0: none
}{
	{"any IPv4 address", &unix.SockaddrInet4{Port: roce.Port}, "", 0},
	{"any IPv6 address", &unix.SockaddrInet6{Port: roce.Port}, "", 0},
	{"loopback address", &unix.SockaddrInet4{Port: roce.Port, Addr: [4]byte{127, 0, 0, 1}}, "", 0},
	{"underlay address", &unix.SockaddrInet4{Port: roce.Port, Addr: [4]byte{192, 0, 2, 1}}, "", 0},
	{"group address", &unix.SockaddrInet4{Port: roce.Port, Addr: groupAddr.As4()}, "", 0},
	{"underlay device", &unix.SockaddrInet4{Port: roce.Port}, nstest.Dev, 0},
	{"address and device", &unix.SockaddrInet4{Port: roce.Port, Addr: [4]byte{192, 0, 2, 1}}, nstest.Dev, 0},
	{"SO_REUSEADDR", &unix.SockaddrInet4{Port: roce.Port}, nstest.Dev, unix.SO_REUSEADDR},
	{"SO_REUSEPORT", &unix.SockaddrInet6{Port: roce.Port}, nstest.Dev, unix.SO_REUSEPORT},
}

// tryBinding binds a socket in one of the ways; -1 where the kernel refuses.
func tryBinding(i int) int {
	b := bindings[i]
	family := unix.AF_INET
	if _, ok := b.addr.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if b.device != "" {
		err = unix.BindToDevice(fd, b.device)
	}
	if b.option != 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.option, 1))
	}
	if err := errors.Join(err, unix.Bind(fd, b.addr)); err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// asStranger runs f on a thread of the host that is uid 65534 and has no
// capabilities. The returned function waits for the end of f.
func (h *host) asStranger(f func()) (wait func()) {
	h.tb.Helper()
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends as that user
		ns, err := os.Open(h.Path())
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err == nil {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); errno != 0 {
				err = errno
			}
		}
		ready <- err
		if err == nil {
			f()
		}
	}()
	if err := <-ready; err != nil {
		h.tb.Fatalf("become uid %d in the host's namespace: %v", stranger, err)
	}
	return func() { <-done }
}

// A local user without capabilities tries to bind port 4791 in every way, all
// the time, while the device is reset ten times: it never succeeds, and each
// reset takes as long as one without the user.
func TestPortStaysOursAcrossResets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const resets = 10
	a, b := twoJoined(t)
	events := a.daemon.follow()
	reset := func() (outage time.Duration) {
		n := events.len()
		a.daemon.order("/v1/reset", map[string]string{"scope": "device"})
		var end event
		events.wait(t, n, recoveryLimit, "reset", func(e event) bool {
			end = e
			return e.ends() && e.Scope == ifName
		})
		return end.outage()
	}
	var alone, attacked []time.Duration
	for range resets {
		alone = append(alone, reset())
	}

	var stop atomic.Bool
	var tries int
	taken := map[string]int{}
	wait := a.asStranger(func() {
		for ; !stop.Load(); tries++ {
			i := tries % len(bindings)
			if fd := tryBinding(i); fd >= 0 {
				taken[bindings[i].name]++
				_ = unix.Close(fd)
			}
		}
	})
	for range resets {
		attacked = append(attacked, reset())
	}
	stop.Store(true)
	wait()

	t.Logf("%d tries; outages %s alone, %s meanwhile (median/worst)", tries, figures(alone), figures(attacked))
	if tries < len(bindings)*resets || len(taken) > 0 {
		t.Errorf("of %d tries these bound the port: %v", tries, taken)
	}
	if worst := 10 * goals[resetDevice]; maxOf(attacked) > worst {
		t.Errorf("outages %v, limit %v", attacked, worst)
	}
	b.ping(a)
}

func maxOf(all []time.Duration) (most time.Duration) {
	for _, d := range all {
		most = max(most, d)
	}
	return most
}

// A daemon that starts while another process has the port names that process,
// waits, and serves once the port is free.
func TestStartWaitsForThePort(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	a.daemon.stop()
	release := make(chan struct{})
	bound := make(chan int, 1)
	wait := a.asStranger(func() {
		fd := tryBinding(0)
		bound <- fd
		<-release
		_ = unix.Close(fd)
	})
	if <-bound < 0 {
		t.Fatal("the port of a stopped daemon is not free")
	}
	a.start()
	holder := fmt.Sprintf("(pid %d)", os.Getpid())
	eventually(t, startLimit, "the status names the holder", func() bool {
		i := a.iface()
		return i.State != "up" && strings.Contains(i.Reason, "4791") && strings.Contains(i.Reason, holder)
	})
	time.Sleep(2 * time.Second) // two more tries, which the log does not repeat
	if n := strings.Count(a.daemon.log.String(), "cannot open device"); n != 1 {
		t.Errorf("the log says so %d times:\n%s", n, a.daemon.log)
	}
	close(release)
	wait()
	freed := time.Now()
	a.waitCarrier()
	t.Logf("up %v after the port was free", time.Since(freed))
	b.waitReaches(a)
}
