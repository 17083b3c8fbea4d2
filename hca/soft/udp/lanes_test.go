package udp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// openLanes opens the lanes of a host.
func openLanes(t testing.TB, ns *nstest.Namespace, cfg udp.Config) (lanes []*udp.Transport) {
	t.Helper()
	cfg.Netdev = nstest.Dev
	var err error
	ns.Do(func() { lanes, err = udp.OpenLanes(cfg) })
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lanes {
		t.Cleanup(func() { _ = l.Close() })
	}
	if len(lanes) != max(1, cfg.Lanes) {
		t.Fatalf("opened %d lanes, want %d: %v", len(lanes), cfg.Lanes, lanes[0].LanesRefused())
	}
	waitState(t, lanes[0], "the link to be up", func(s transport.State) bool { return s.Up })
	return lanes
}

// The first one of several lanes behaves like a transport of its own.
func TestFirstLaneConformance(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	transporttest.Each(t, func(t *testing.T, test func(t *testing.T, a, b transporttest.Host)) {
		var hosts []transporttest.Host
		nsA, nsB := nstest.Pair(t, transporttest.MTU)
		for i, ns := range []*nstest.Namespace{nsA, nsB} {
			lanes := openLanes(t, ns, udp.Config{Lanes: 2})
			hosts = append(hosts, transporttest.Host{
				Transport: lanes[0], Underlay: &admin{t, ns},
				IPv4: netip.MustParseAddr(nstest.IPv4(i)), IPv6: netip.MustParseAddr(nstest.IPv6(i)),
			})
		}
		test(t, hosts[0], hosts[1])
	})
}

// laneReceiver collects what a lane receives.
func laneReceiver(l *udp.Transport, at int, got chan<- string) {
	pkts := make([]transport.Packet, 64)
	for {
		n, err := l.Recv(pkts)
		if err != nil {
			return
		}
		for i := range pkts[:n] {
			got <- fmt.Sprintf("%s at lane %d", pkts[i].Data, at)
		}
	}
}

// received returns the next n messages, sorted, and fails if there are more.
func received(t *testing.T, got <-chan string, n int) (all []string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for len(all) < n {
		select {
		case s := <-got:
			all = append(all, s)
		case <-limit:
			t.Fatalf("received only %q", all)
		}
	}
	select {
	case s := <-got:
		t.Errorf("received %q as well", s)
	case <-time.After(100 * time.Millisecond):
	}
	slices.Sort(all)
	return all
}

// The datagrams and the trains of lane i arrive at lane i of a peer with as many lanes, and at lane
// i modulo their number of a peer with fewer. A multicast datagram arrives once, at the first lane.
func TestLanes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct{ from, to int }{{4, 4}, {2, 8}, {8, 2}, {4, 1}} {
		t.Run(fmt.Sprintf("%d_to_%d", c.from, c.to), func(t *testing.T) {
			nsA, nsB := nstest.Pair(t, 1500)
			a, b := openLanes(t, nsA, udp.Config{Lanes: c.from}), openLanes(t, nsB, udp.Config{Lanes: c.to})
			got := make(chan string, 1000)
			for i, l := range b {
				go laneReceiver(l, i, got)
			}
			group := netip.MustParseAddr("239.192.1.2")
			if err := b[0].Join(group); err != nil {
				t.Fatal(err)
			}
			for _, ip := range []func(int) string{nstest.IPv4, nstest.IPv6} {
				src, dst := netip.MustParseAddr(ip(0)), netip.MustParseAddr(ip(1))
				var want []string
				for i, l := range a {
					at := i % c.to
					if c.to > c.from {
						at = int(l.SrcPort()) % c.to
					}
					text := fmt.Sprintf("from %d.", i)
					sendOn(t, l, transport.Packet{Src: src, Dst: dst, Data: []byte(text)})
					want = append(want, fmt.Sprintf("%s at lane %d", text, at))
					train := transport.Packet{Src: src, Dst: dst, Segs: 3, SegSize: len(text), Data: []byte(text + text + text)}
					sendOn(t, l, train)
					for range train.Segs {
						want = append(want, fmt.Sprintf("%s at lane %d", text, at))
					}
				}
				slices.Sort(want)
				if all := received(t, got, len(want)); !slices.Equal(all, want) {
					t.Errorf("%v: received\n%q, want\n%q", dst, all, want)
				}
			}
			for i, l := range a {
				sendOn(t, l, transport.Packet{Src: netip.MustParseAddr(nstest.IPv4(0)), Dst: group, Data: []byte("to all")})
				if all := received(t, got, 1); all[0] != "to all at lane 0" {
					t.Errorf("multicast from lane %d: received %q", i, all)
				}
			}
			for i, l := range b {
				if n := counterOf(t, transporttest.Host{Transport: l}, "rx_trains"); n == 0 && i < c.from && c.to <= c.from {
					t.Errorf("lane %d received no train", i)
				}
			}
		})
	}
}

// sendOn sends a packet, after the address is usable.
func sendOn(t *testing.T, l *udp.Transport, p transport.Packet) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !slices.Contains(l.State().Addrs, p.Src); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no address %v", p.Src)
		}
	}
	if n, err := l.Send([]transport.Packet{p}); n != 1 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
}

// stranger is another user, as which the tests open sockets; that needs root.
const stranger = 65534

// reuseportSocket binds a socket of another user to the port of RoCEv2.
func reuseportSocket(t *testing.T, ns *nstest.Namespace, family int, netdev bool) (fd int, err error) {
	t.Helper()
	ns.Do(func() {
		withUser(stranger, func() { fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		if netdev {
			err = errors.Join(err, unix.BindToDevice(fd, nstest.Dev))
		}
		if err != nil {
			t.Fatal(err)
		}
		if family == unix.AF_INET {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: udp.Port})
		} else {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: udp.Port})
		}
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, err
}

// withUser calls f with the user ID that the kernel gives to the sockets that the thread opens
// (sock_alloc, net/socket.c). The thread is locked.
func withUser(id uintptr, f func()) {
	before, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, id, 0, 0)
	f()
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, before, 0, 0)
}

// The lanes admit no socket of another user to their port, and refuse to start beside one.
func TestLanesAreExclusive(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, netdev := range []bool{false, true} {
			ns, _ := nstest.Pair(t, 1500)
			lanes := openLanes(t, ns, udp.Config{Lanes: 4})
			if _, err := reuseportSocket(t, ns, family, netdev); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("family %d, bound to the netdev %v: binding to the port of the lanes returned %v", family, netdev, err)
			}
			for _, l := range lanes {
				_ = l.Close()
			}
			fd, err := reuseportSocket(t, ns, family, netdev)
			if err != nil {
				t.Fatalf("bind after the lanes were closed: %v", err)
			}
			ns.Do(func() { _, err = udp.OpenLanes(udp.Config{Netdev: nstest.Dev, Lanes: 4}) })
			if !errors.Is(err, udp.ErrPortTaken) {
				t.Errorf("family %d, bound to the netdev %v: opening lanes beside another socket returned %v", family, netdev, err)
			}
			_ = unix.Close(fd)
		}
	}
}

// The ports of all lanes stay bound between one opening and the next, with the same source ports.
func TestReservedLanes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var reserve udp.Reserve
	defer reserve.Close()
	var ports [2][]uint16
	for round := range ports {
		lanes := openLanes(t, ns, udp.Config{Lanes: 4, Reserve: &reserve})
		var err error
		if ns.Do(func() { _, err = udp.OpenLanes(udp.Config{Netdev: nstest.Dev, Lanes: 4, Reserve: &reserve}) }); err == nil {
			t.Error("the lanes were opened twice")
		}
		for i, l := range lanes {
			if ports[round] = append(ports[round], l.SrcPort()); int(l.SrcPort())%4 != i {
				t.Errorf("lane %d has the source port %#x", i, l.SrcPort())
			}
			_ = l.Close()
		}
		if _, err := reuseportSocket(t, ns, unix.AF_INET6, true); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("binding to the reserved port returned %v", err)
		}
	}
	if !slices.Equal(ports[0], ports[1]) {
		t.Errorf("source ports %x, then %x", ports[0], ports[1])
	}
}

// A Reserve that holds the sockets of some lanes refuses to open another number of lanes: the
// kernel would deliver datagrams to lanes from which no one receives. After Close it accepts any
// number.
func TestReserveKeepsTheNumberOfLanes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var reserve udp.Reserve
	defer reserve.Close()
	openClose := func(n int) {
		t.Helper()
		for _, l := range openLanes(t, ns, udp.Config{Lanes: n, Reserve: &reserve}) {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	refuse := func(have, n int) {
		t.Helper()
		var lanes []*udp.Transport
		var err error
		ns.Do(func() { lanes, err = udp.OpenLanes(udp.Config{Netdev: nstest.Dev, Lanes: n, Reserve: &reserve}) })
		for _, l := range lanes {
			_ = l.Close()
		}
		if want := fmt.Sprintf("open %d lanes with a Reserve for %d lanes", max(1, n), have); !errors.Is(err, hca.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("opening %d lanes after %d: %v, want ErrInvalid with %q", n, have, err, want)
		}
	}
	openClose(4)
	for _, n := range []int{0, 1, 2, 8} {
		refuse(4, n)
	}
	openClose(4)
	if err := reserve.Close(); err != nil {
		t.Fatal(err)
	}
	openClose(1)
	refuse(1, 4)
	openClose(0)
}

// A daemon without CAP_CHOWN has all its lanes, also when it opens them again, and no other user can join
// them.
func TestLanesWithoutCapability(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	for range 2 {
		var lanes []*udp.Transport
		unprivileged(t, ns, changeOwner, func() {
			var err error
			if lanes, err = udp.OpenLanes(udp.Config{Netdev: nstest.Dev, Lanes: 4}); err != nil {
				t.Error(err)
			}
		})
		if len(lanes) != 4 {
			t.Fatalf("%d lanes: %v", len(lanes), lanes[0].LanesRefused())
		}
		if _, err := reuseportSocket(t, ns, unix.AF_INET6, true); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("binding to the port returned %v", err)
		}
		for _, l := range lanes {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// unprivileged runs f in a namespace on a thread without some capabilities.
func unprivileged(t *testing.T, ns *nstest.Namespace, drop uint64, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ns.Do(func() { // it locks the thread
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&hdr, &data[0]); err != nil {
				t.Error(err)
				return
			}
			less := data
			for i := range less {
				less[i].Effective &^= uint32(drop >> (32 * i))
			}
			if err := unix.Capset(&hdr, &less[0]); err != nil {
				t.Error(err)
				return
			}
			f()
			if err := unix.Capset(&hdr, &data[0]); err != nil {
				t.Error(err)
			}
		})
	}()
	<-done
}

// changeOwner is a set of capabilities.
const changeOwner = 1 << unix.CAP_CHOWN
