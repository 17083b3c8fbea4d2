package udp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

var (
	group4 = netip.MustParseAddr("239.192.1.2")
	group6 = netip.MustParseAddr("ff12::1:2")
)

func TestNoNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	_, err := udp.Open(udp.Config{Netdev: "eth77"})
	if !errors.Is(err, hca.ErrNoDevice) || !strings.Contains(err.Error(), `"eth77"`) {
		t.Errorf("Open: %v, want hca.ErrNoDevice with the name", err)
	}
}

// If this process holds the port on a netdev already, Open fails there and names the
// process, and succeeds on another netdev.
func TestPortTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	openIn(t, ns, udp.Config{Netdev: nstest.Dev})
	ns.Do(func() {
		_, err := udp.Open(udp.Config{Netdev: nstest.Dev})
		var taken *udp.PortTakenError
		if !errors.Is(err, udp.ErrPortTaken) || !errors.As(err, &taken) {
			t.Fatalf("Open: %v, want ErrPortTaken", err)
		}
		if len(taken.Holders) != 1 || taken.Holders[0].PID != os.Getpid() {
			t.Errorf("holders %v, want process %d", taken.Holders, os.Getpid())
		}
		if _, err := os.Stdin.Stat(); err != nil {
			t.Errorf("the refused transport has closed another descriptor: %v", err)
		}
		other, err := udp.Open(udp.Config{Netdev: "lo"})
		if err != nil {
			t.Fatalf("Open on another netdev: %v", err)
		}
		_ = other.Close()
	})
}

// If the source port is taken, the transport uses the next one.
func TestSourcePortTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	first := openIn(t, ns, udp.Config{Netdev: nstest.Dev})
	port := first.SrcPort()
	_ = first.Close()
	again := openIn(t, ns, udp.Config{Netdev: nstest.Dev})
	if again.SrcPort() != port {
		t.Errorf("source port %d, then %d for the same MAC", port, again.SrcPort())
	}
	_ = again.Close()
	ns.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}); err != nil {
			t.Fatal(err)
		}
	})
	want := port + 1
	if port == 0xffff {
		want = 0xc000
	}
	if got := openIn(t, ns, udp.Config{Netdev: nstest.Dev}).SrcPort(); got != want {
		t.Errorf("source port %d with %d taken, want %d", got, port, want)
	}
}

// When other sockets hold every source port that RoCEv2 recommends, the transport uses
// another port.
func TestAllSourcePortsTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Do(func() {
		for port := 0xc000; port <= 0xffff; port++ {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
				t.Fatal(err)
			}
		}
	})
	start := time.Now()
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
	t.Logf("source port %d, found in %v", a.SrcPort(), time.Since(start).Round(time.Millisecond))
	sendOne(t, a, transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: []byte("hello")})
	if got := recvOne(t, b); got.SrcPort != a.SrcPort() || got.SrcPort >= 0xc000 {
		t.Errorf("received from port %d, the transport has %d; want the same one, below 0xC000", got.SrcPort, a.SrcPort())
	}
}

// One host has a transport on each of two netdevs; each transport receives from its own
// peer.
func TestTwoNetdevs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := [3]*nstest.Namespace{nstest.New(t), nstest.New(t), nstest.New(t)}
	for i, name := range []string{"left", "right"} {
		nstest.Veth(t, hosts[0], name, hosts[i+1], nstest.Dev, 1500)
		addr(t, hosts[0], name, fmt.Sprintf("10.0.%d.1/24", i))
		addr(t, hosts[i+1], nstest.Dev, fmt.Sprintf("10.0.%d.2/24", i))
	}
	for i, name := range []string{"left", "right"} {
		here := transporttest.Host{Transport: openIn(t, hosts[0], udp.Config{Netdev: name})}
		there := transporttest.Host{Transport: openIn(t, hosts[i+1], udp.Config{Netdev: nstest.Dev})}
		src, dst := netip.AddrFrom4([4]byte{10, 0, byte(i), 2}), netip.AddrFrom4([4]byte{10, 0, byte(i), 1})
		sendOne(t, there, transport.Packet{Src: src, Dst: dst, Data: []byte(name)})
		if got := recvOne(t, here); string(got.Data) != name {
			t.Errorf("%s received %q, want its own name", name, got.Data)
		}
		sendOne(t, here, transport.Packet{Src: dst, Dst: src, Data: []byte(name)})
		if got := recvOne(t, there); string(got.Data) != name {
			t.Errorf("the peer of %s received %q", name, got.Data)
		}
	}
}

func addr(t *testing.T, ns *nstest.Namespace, name, cidr string) {
	t.Helper()
	ns.Do(func() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		a, err := netlink.ParseAddr(cidr)
		if err == nil {
			err = netlink.AddrAdd(link, a)
		}
		if err != nil {
			t.Fatalf("add %s to %s: %v", cidr, name, err)
		}
	})
}

// A netdev that moves to another namespace counts as removed.
func TestMovedAway(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	tr := openIn(t, nsA, udp.Config{Netdev: nstest.Dev})
	nsA.Run("ip", "link", "set", nstest.Dev, "name", "eth9")
	waitState(t, tr, "the new name", func(s transport.State) bool { return s.Name == "eth9" })
	nsA.Run("ip", "link", "set", "eth9", "netns", fmt.Sprint(os.Getpid()))
	waitState(t, tr, "the netdev to be removed", func(s transport.State) bool { return !s.Present })
}

func waitState(t testing.TB, tr *udp.Transport, what string, ok func(transport.State) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), transporttest.Patience)
	defer cancel()
	for s := tr.State(); !ok(s); {
		var err error
		if s, err = tr.WaitChange(ctx); err != nil {
			t.Fatalf("wait for %s: %v", what, err)
		}
	}
}

// Opening and closing a transport a hundred times leaks neither descriptors nor
// goroutines.
func TestNoLeak(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	cycle := func() {
		tr := openIn(t, ns, udp.Config{Netdev: nstest.Dev})
		if err := errors.Join(tr.Join(group4), tr.Join(group6), tr.Close()); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	running, before := goroutines(), descriptors(t) // those that end late may hold descriptors
	for range 100 {
		cycle()
	}
	if now := goroutines(); now != running {
		t.Errorf("%d goroutines before, %d after", running, now)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// goroutines returns the number of goroutines when it has stayed the same for a second: Close
// may return shortly before the goroutine for which it waited exits.
func goroutines() int {
	n := runtime.NumGoroutine()
	for same := 0; same < 100; same++ {
		time.Sleep(10 * time.Millisecond)
		if now := runtime.NumGoroutine(); now != n {
			n, same = now, 0
		}
	}
	return n
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
