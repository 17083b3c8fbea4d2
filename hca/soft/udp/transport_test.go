package udp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/hca/soft/wire"
	"ipoibd/hca/soft/wire/wiretest"
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

// TestPortTaken: this process has the port already, on this netdev only.
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
		if who := fmt.Sprintf("(pid %d)", os.Getpid()); len(taken.Holders) != 1 || !strings.Contains(taken.Holders[0], who) {
			t.Errorf("holders %q, want one with %s", taken.Holders, who)
		}
		other, err := udp.Open(udp.Config{Netdev: "lo"})
		if err != nil {
			t.Fatalf("Open on another netdev: %v", err)
		}
		_ = other.Close()
	})
}

// TestSourcePortTaken: the next one is used.
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
		t.Errorf("source port %d, then %d, of the same MAC", port, again.SrcPort())
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

// TestTwoNetdevs: one host has two netdevs, with a transport on each; each
// hears its own peer.
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
		here := wiretest.Host{Transport: openIn(t, hosts[0], udp.Config{Netdev: name})}
		there := wiretest.Host{Transport: openIn(t, hosts[i+1], udp.Config{Netdev: nstest.Dev})}
		src, dst := netip.AddrFrom4([4]byte{10, 0, byte(i), 2}), netip.AddrFrom4([4]byte{10, 0, byte(i), 1})
		sendOne(t, there, wire.Packet{Src: src, Dst: dst, Vec: [][]byte{[]byte(name)}})
		if got := recvOne(t, here); string(got.Data) != name {
			t.Errorf("%s received %q", name, got.Data)
		}
		sendOne(t, here, wire.Packet{Src: dst, Dst: src, Vec: [][]byte{[]byte(name)}})
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

// TestReceiveTooLong: a datagram above MaxDatagram is dropped and counted.
func TestReceiveTooLong(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, 16000)
	for _, n := range []int{udp.MaxDatagram + 1, udp.MaxDatagram} {
		sendOne(t, a, wire.Packet{Src: a.IPv4, Dst: b.IPv4, Vec: [][]byte{make([]byte, n)}})
	}
	if got := recvOne(t, b); len(got.Data) != udp.MaxDatagram {
		t.Errorf("received %d bytes, want %d", len(got.Data), udp.MaxDatagram)
	}
	if n := counterOf(t, b, "rx_too_long"); n != 1 {
		t.Errorf("rx_too_long = %d, want 1", n)
	}
}

func counterOf(t *testing.T, h wiretest.Host, name string) uint64 {
	t.Helper()
	i := slices.IndexFunc(h.Counters(), func(c hca.Counter) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no counter %q", name)
	}
	return h.Counters()[i].Value
}

// TestOverflow: what a small receive buffer cannot take is counted, to the
// datagram, also after Close.
func TestOverflow(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{RecvBuf: 20_000})
	const n = 500
	pkts := make([]wire.Packet, n)
	for i := range pkts {
		pkts[i] = wire.Packet{Src: a.IPv4, Dst: b.IPv4, Vec: [][]byte{make([]byte, 1000)}}
	}
	if sent, err := a.Send(pkts); sent != n || err != nil {
		t.Fatalf("Send = %d, %v", sent, err)
	}
	lost := await(t, "overflow to rest", func() (uint64, bool) {
		before := counterOf(t, b, "rcvbuf_overflow")
		time.Sleep(20 * time.Millisecond)
		after := counterOf(t, b, "rcvbuf_overflow")
		return after, after > 0 && after == before
	})
	for range n - lost {
		recvOne(t, b)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := counterOf(t, b, "rcvbuf_overflow"); got != lost {
		t.Errorf("rcvbuf_overflow = %d after Close, want %d", got, lost)
	}
	if got := counterOf(t, b, "rx_packets"); got != n-lost {
		t.Errorf("rx_packets = %d, want %d", got, n-lost)
	}
}

func await(t *testing.T, what string, ok func() (uint64, bool)) uint64 {
	t.Helper()
	for end := time.Now().Add(wiretest.Patience); time.Now().Before(end); {
		if v, done := ok(); done {
			return v
		}
	}
	t.Fatalf("waited in vain for %s", what)
	return 0
}

// TestFull fills the send buffer against a slow queue.
func TestFull(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("tc", "qdisc", "add", "dev", nstest.Dev, "root", "tbf", "rate", "4mbit", "burst", "2000", "limit", "1000000")
	a, b := openHost(t, nsA, 0, udp.Config{SendBuf: 20_000}), openHost(t, nsB, 1, udp.Config{})
	pkts := make([]wire.Packet, 100)
	for i := range pkts {
		pkts[i] = wire.Packet{Src: a.IPv4, Dst: b.IPv4, Vec: [][]byte{{byte(i)}, make([]byte, 1000)}}
	}
	waits := 0
	for rest := pkts; len(rest) > 0; {
		n, err := a.Send(rest)
		if err != nil {
			t.Fatal(err)
		}
		if rest = rest[n:]; len(rest) > 0 {
			waits++
			if err := a.WaitWritable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if waits == 0 {
		t.Error("Send was never short")
	}
	for i := range pkts {
		if got := recvOne(t, b); got.Data[0] != byte(i) {
			t.Fatalf("datagram %d is number %d", i, got.Data[0])
		}
	}
}

// TestWaitWritableEnds: on a full socket it ends with its context and by Close.
func TestWaitWritableEnds(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("tc", "qdisc", "add", "dev", nstest.Dev, "root", "tbf", "rate", "8", "burst", "2000", "limit", "1000000")
	a, b := openHost(t, nsA, 0, udp.Config{SendBuf: 20_000}), openHost(t, nsB, 1, udp.Config{})
	pkts := make([]wire.Packet, 100)
	for i := range pkts {
		pkts[i] = wire.Packet{Src: a.IPv4, Dst: b.IPv4, Vec: [][]byte{make([]byte, 1000)}}
	}
	if n, err := a.Send(pkts); n == len(pkts) || err != nil {
		t.Fatalf("Send = %d, %v, want a short one", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := a.WaitWritable(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitWritable: %v, want the context's error", err)
	}
	time.AfterFunc(30*time.Millisecond, func() { _ = a.Close() })
	if err := a.WaitWritable(t.Context()); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("WaitWritable: %v, want hca.ErrClosed", err)
	}
}

// TestMovedAway: a netdev that moves to another namespace is gone from here.
func TestMovedAway(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	tr := openIn(t, nsA, udp.Config{Netdev: nstest.Dev})
	nsA.Run("ip", "link", "set", nstest.Dev, "name", "eth9")
	waitState(t, tr, "the new name", func(s wire.State) bool { return s.Name == "eth9" })
	nsA.Run("ip", "link", "set", "eth9", "netns", fmt.Sprint(os.Getpid()))
	waitState(t, tr, "the netdev to go", func(s wire.State) bool { return !s.Present })
}

func waitState(t testing.TB, tr *udp.Transport, what string, ok func(wire.State) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wiretest.Patience)
	defer cancel()
	for s := tr.State(); !ok(s); {
		var err error
		if s, err = tr.WaitChange(ctx); err != nil {
			t.Fatalf("wait for %s: %v", what, err)
		}
	}
}

// TestNoLeak opens and closes a hundred times; descriptors and goroutines stay.
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
	before := descriptors(t)
	for range 100 {
		cycle()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestDefaultNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if _, err := udp.DefaultNetdev(); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("DefaultNetdev of an empty namespace: %v, want hca.ErrNoDevice", err)
	}
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "one", b, "one", 1500)
	checkDefault(t, a, "one")
	nstest.Veth(t, a, "two", b, "two", 1500)
	a.Do(func() {
		if name, err := udp.DefaultNetdev(); err == nil || !strings.Contains(err.Error(), "one, two") {
			t.Errorf("DefaultNetdev = %q, %v, want both candidates named", name, err)
		}
	})
	addr(t, a, "two", "10.0.0.1/24")
	a.Run("ip", "route", "add", "default", "via", "10.0.0.9")
	checkDefault(t, a, "two")
}

func checkDefault(t *testing.T, ns *nstest.Namespace, want string) {
	t.Helper()
	ns.Do(func() {
		if got, err := udp.DefaultNetdev(); got != want || err != nil {
			t.Errorf("DefaultNetdev = %q, %v, want %q", got, err, want)
		}
	})
}

func TestWaitNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns := nstest.New(t)
	wait := func(ctx context.Context, name string) <-chan error {
		done := make(chan error, 1)
		go func() {
			ns.Do(func() { done <- udp.WaitNetdev(ctx, name) })
		}()
		return done
	}
	if err := <-wait(t.Context(), "lo"); err != nil {
		t.Errorf("WaitNetdev of lo: %v", err)
	}
	late := wait(t.Context(), "eth7")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := <-wait(ctx, "eth8"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitNetdev: %v, want the context's error", err)
	}
	ns.Run("ip", "link", "add", "eth6", "type", "bridge")
	select {
	case err := <-late:
		t.Errorf("WaitNetdev of eth7 returned before its time: %v", err)
	default:
	}
	ns.Run("ip", "link", "add", "eth7", "type", "bridge")
	if err := <-late; err != nil {
		t.Errorf("WaitNetdev of eth7: %v", err)
	}
}
