package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// fast returns how many frames the fast path of the host has carried in both directions.
func (h *host) fast() uint64 {
	h.tb.Helper()
	c := h.iface().Counters
	return c["fast_tx_packets"] + c["fast_rx_packets"]
}

// carries sends pings to another host, which are answered, and returns how many frames the fast path of the host
// has carried meanwhile.
func (h *host) carries(other *host) uint64 {
	h.tb.Helper()
	before := h.fast()
	for _, addr := range []string{other.ip4(), other.ip6()} {
		h.Run("ping", "-n", "-q", "-c", "5", "-i", "0.01", "-W", "5", addr)
	}
	return h.fast() - before
}

// waitFast waits until the fast path carries all pings to another host.
func (h *host) waitFast(other *host) {
	h.tb.Helper()
	eventually(h.tb, repairLimit, "the fast path carries pings", func() bool { return h.carries(other) >= 20 })
}

// fastPrograms returns the programs of the fast path that are attached in the namespace of the host.
func (h *host) fastPrograms() string {
	h.tb.Helper()
	return h.Run("sh", "-c", "for at in '"+ifName+" egress' '"+nstest.Dev+" ingress'; do tc filter show dev $at; done | grep -o 'name at_[a-z]*' || true")
}

// The fast path carries small frames of two hosts, until the daemon must see all frames, and again afterwards. It continues after
// recoveries and hand-overs, and ends with the daemon.
func TestFastPath(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for i, h := range hosts {
		h.join("--fast-path", "--lanes", []string{"1", "4"}[i])
	}
	pingAll(a, b)
	a.waitFast(b)
	b.waitFast(a)
	if n := len(strings.Fields(a.fastPrograms())); n != 4 {
		t.Errorf("programs: %s", a.fastPrograms())
	}

	slow := func(why string) {
		t.Helper()
		if n := a.carries(b); n != 0 {
			t.Errorf("%s: the fast path carries %d frames", why, n)
		}
	}
	capture := a.record()
	slow("during a capture")
	capture.stop()
	a.waitFast(b)

	watching := a.Command("tcpdump", "-n", "-l", "-i", ifName, "icmp")
	seen := &logBuffer{}
	watching.Stdout = seen
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, repairLimit, "tcpdump shows all requests and replies", func() bool { // it starts and prints with a delay
		carried, out := a.carries(b), seen.String()
		return carried == 0 && strings.Count(out, "echo request") >= 5 && strings.Count(out, "echo reply") >= 5
	})
	slow("while tcpdump watches")
	if err := watching.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = watching.Wait()
	a.waitFast(b)

	a.Run("ip", "xfrm", "policy", "add", "src", "192.0.2.8", "dst", "192.0.2.9", "dir", "out", "action", "block")
	eventually(t, repairLimit, "IPsec is noticed", func() bool { return a.iface().Counters["fast_refused"] == 1 })
	if why := a.iface().NoFast; !strings.Contains(why, "ip xfrm policy") {
		t.Errorf("with an IPsec policy: no_fast_path: %q", why)
	}
	slow("with an IPsec policy")
	a.Run("ip", "xfrm", "policy", "flush")
	a.waitFast(b)
	a.Run("ip", "xfrm", "policy", "setdefault", "fwd", "block")
	eventually(t, repairLimit, "a default that drops packets is noticed", func() bool { return strings.Contains(a.iface().NoFast, "getdefault") })
	a.Run("ip", "xfrm", "policy", "setdefault", "fwd", "accept")
	a.waitFast(b)

	for _, scope := range []string{"qp", "cq", "device"} {
		if out, err := a.daemon.command("reset", scope, "--wait").CombinedOutput(); err != nil {
			t.Fatalf("reset %s: %v\n%s", scope, err, out)
		}
		a.waitReaches(b)
		a.waitFast(b)
	}
	a.handOver()
	a.waitFast(b)
	b.handOver()
	a.waitFast(b)

	b.addMacvlan(t)
	before := b.fast()
	a.carries(b)
	if n := b.fast() - before; n != 0 {
		t.Errorf("with a macvlan behind ib0: the fast path carries %d frames", n)
	}

	b.daemon.kill()
	eventually(t, repairLimit, "a host whose daemon was killed no longer answers", func() bool {
		return a.Command("ping", "-n", "-c", "5", "-i", "0.05", "-W", "1", b.ip4()).Run() != nil
	})
	b.start(slowPath)
	b.waitCarrier()
	a.waitReaches(b)
	eventually(t, repairLimit, "the program at the underlay is removed", func() bool { return b.fastPrograms() == "" })
	if n := b.fast(); n != 0 {
		t.Errorf("without a fast path, it has carried %d frames", n)
	}
	a.daemon.stop()
	if s := a.fastPrograms() + a.Run("tc", "qdisc", "show", "dev", nstest.Dev, "clsact"); s != "" {
		t.Errorf("after the daemon stopped: %s", s)
	}
}

// closeLimit is ten times the goal for the time from the death of a daemon to the last frame of its fast path.
const closeLimit = time.Second

// Under a flood, the fast path of a daemon that is killed receives and sends nothing more, and the next daemon leaves nothing
// of it.
func TestFastPathEndsWithItsDaemon(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.join("--fast-path")
	}
	pingAll(a, b)
	a.waitFast(b)
	for name, victim := range map[string]*host{"receiver": b, "sender": a} {
		t.Run(name, func(t *testing.T) {
			programs, carried := victim.fastPrograms(), victim.fast()
			stream := newDatagramFlood(t, a, b)
			eventually(t, repairLimit, "the fast path carries the flood", func() bool { return victim.fast() > carried+1000 })
			killed := time.Now()
			victim.daemon.kill()
			last, after := stream.stop(killed)
			t.Logf("after the death of the %s: %d datagrams in %v", name, after, last)
			if last > closeLimit {
				t.Errorf("a datagram arrived %v after the death of the %s", last, name)
			}
			victim.start("--fast-path")
			victim.waitCarrier()
			a.waitReaches(b)
			a.waitFast(b)
			if s := victim.fastPrograms(); s != programs {
				t.Errorf("programs after the next start:\n%s\nbefore:\n%s", s, programs)
			}
		})
	}
}

// datagramFlood is a stream of small datagrams from one host to another, as fast as it can be sent.
type datagramFlood struct {
	in       net.PacketConn
	out      net.Conn
	arrivals chan []time.Time
}

func newDatagramFlood(t *testing.T, a, b *host) *datagramFlood {
	t.Helper()
	f := &datagramFlood{arrivals: make(chan []time.Time, 1)}
	f.out, f.in = datagramPair(t, a, b)
	go func() {
		for payload := make([]byte, 64); ; {
			if _, err := f.out.Write(payload); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	go func() {
		var all []time.Time
		for buf := make([]byte, 128); ; {
			if _, _, err := f.in.ReadFrom(buf); err != nil {
				f.arrivals <- all
				return
			}
			all = append(all, time.Now())
		}
	}()
	return f
}

// datagramPair returns sockets for datagrams from one host to another.
func datagramPair(t *testing.T, a, b *host) (out net.Conn, in net.PacketConn) {
	t.Helper()
	addr := net.JoinHostPort(b.ip4(), strconv.Itoa(numberedPort))
	var errIn, errOut error
	b.Do(func() { in, errIn = net.ListenPacket("udp", addr) })
	a.Do(func() { out, errOut = net.Dial("udp", addr) })
	if err := errors.Join(errIn, errOut); err != nil {
		t.Fatal(err)
	}
	return out, in
}

// stop ends the stream once it has had time to arrive, and returns when the last datagram arrived, and how many did, since a
// moment.
func (f *datagramFlood) stop(since time.Time) (last time.Duration, n int) {
	time.Sleep(2 * closeLimit)
	f.out.Close()
	f.in.Close()
	for _, at := range <-f.arrivals {
		if at.After(since) {
			last, n = at.Sub(since), n+1
		}
	}
	return last, n
}

// The fast path follows the host's routes, and the nexthop objects in them: it sends by the router of the present one, and nothing
// without a route.
func TestFastPathFollowsRoutes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct {
		name, family, other string
		ipv6                bool
	}{{"IPv4", "-4", "10.1.0.253", false}, {"IPv6", "-6", "fd01::fd", true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoute(t, c.ipv6, underlayMTU)
			r.join("--fast-path")
			r.a.waitFast(r.b)

			const other = "other" // another router, with its own MAC, on the link of host a
			r.left.Run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.default.rp_filter=0", "net.ipv4.conf.all.rp_filter=0")
			r.left.Run("ip", "link", "add", other, "link", nstest.Dev, "type", "macvlan", "mode", "bridge")
			r.left.Run("ip", "link", "set", other, "up")
			if c.ipv6 {
				r.left.AddIPv6(other, c.other+"/64")
			} else {
				r.left.Run("ip", "addr", "add", c.other+"/24", "dev", other)
			}
			received := func() (n uint64) {
				r.left.Do(func() {
					l, err := netlink.LinkByName(other)
					if err != nil {
						t.Fatal(err)
					}
					n = l.Attrs().Statistics.RxPackets
				})
				return n
			}
			r.a.Run("ip", c.family, "route", "replace", "default", "via", c.other)
			r.a.waitFast(r.b)
			before := received()
			r.a.waitFast(r.b)
			if n := received() - before; n < 10 {
				t.Errorf("the other router has received %d packets, want those of 10 pings", n)
			}

			// A nexthop object changes without a change of the route (nexthop_compat_mode of ip-sysctl.rst), or of a neighbour.
			for _, router := range []string{r.gateway[0], c.other} {
				mac := strings.Fields(r.a.Run("ip", c.family, "neigh", "show", "to", router, "dev", nstest.Dev))[2]
				r.a.Run("ip", c.family, "neigh", "replace", router, "lladdr", mac, "dev", nstest.Dev, "nud", "permanent")
			}
			r.a.Run("sysctl", "-qw", "net.ipv4.nexthop_compat_mode=0")
			r.a.Run("ip", c.family, "nexthop", "add", "id", "10", "via", r.gateway[0], "dev", nstest.Dev)
			r.a.Run("ip", c.family, "route", "replace", "default", "nhid", "10")
			r.a.waitFast(r.b)
			r.a.Run("ip", c.family, "nexthop", "replace", "id", "10", "via", c.other, "dev", nstest.Dev)
			eventually(t, repairLimit, "the fast path follows the nexthop object", func() bool {
				before := received()
				return r.a.carries(r.b) >= 20 && received()-before >= 10
			})

			r.a.Run("ip", c.family, "route", "del", "default")
			sent := r.a.iface().Counters["fast_tx_packets"]
			_ = r.a.Command("ping", "-n", "-q", "-c", "5", "-i", "0.2", "-W", "0.2", r.b.ip4()).Run()
			if n := r.a.iface().Counters["fast_tx_packets"] - sent; n != 0 {
				t.Errorf("without a route, the fast path has sent %d frames", n)
			}
			r.a.Run("ip", c.family, "route", "add", "default", "via", r.gateway[0])
			r.a.waitReaches(r.b)
			r.a.waitFast(r.b)
		})
	}
}

// addMacvlan adds a station behind ib0 that the daemon knows.
func (h *host) addMacvlan(t *testing.T) {
	t.Helper()
	h.Run("ip", "link", "add", "guest0", "link", ifName, "type", "macvlan", "mode", "bridge")
	h.Run("ip", "link", "set", "guest0", "up")
	h.Run("ip", "address", "add", "10.44.0.99/32", "dev", "guest0")
	h.Run("arping", "-A", "-q", "-c", "1", "-I", "guest0", "10.44.0.99")
	eventually(t, repairLimit, "the station is known", func() bool { return len(h.iface().Stations) > 1 })
}

// Datagrams of all sizes stay in order, although small ones take the fast path, and long ones the way through the daemon.
func TestFastPathKeepsOrder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.join("--fast-path", "--lanes", "2")
	}
	pingAll(a, b)
	a.waitFast(b)
	before := a.fast()
	const flows = 4
	results := make(chan error, flows)
	for i := range flows {
		go func() { results <- inOrder(a, b, i, form(8000, 25000000)) }()
	}
	for range flows {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	after := a.iface().Counters
	t.Logf("%d on the fast path, %d left to the daemon to keep their order, %d too long", a.fast()-before, after["fast_tx_order"], after["fast_tx_length"])
	if n := a.fast() - before; n < flows*1000 || after["fast_tx_order"] == 0 {
		t.Errorf("%d datagrams on the fast path, %d behind others", n, after["fast_tx_order"])
	}
}

// inOrder sends n numbered datagrams, in bursts of small and long ones, and returns an error if one arrives after a later one.
func inOrder(a, b *host, flow, n int) (err error) {
	port := uint16(numberedPort + 1 + flow)
	var in *net.UDPConn
	var out net.Conn
	b.Do(func() { in, err = listenNumbered(b.ip4(), port) })
	if err != nil {
		return err
	}
	defer in.Close()
	a.Do(func() { out, err = net.Dial("udp", net.JoinHostPort(b.ip4(), strconv.Itoa(int(port)))) })
	if err != nil {
		return err
	}
	defer out.Close()
	rng := rand.New(rand.NewPCG(uint64(flow), 1))
	rnd := rand.NewChaCha8([32]byte{byte(flow)})
	sent := make(chan error, 1)
	var newest atomic.Int64 // number of the datagram that arrived last
	go func() {
		long := 1
		for i := range n {
			size := numberedMin + rng.IntN(400)
			if long--; long == 0 { // the next ones wait for it
				size, long = 600+rng.IntN(800), 1+rng.IntN(500)
			}
			if _, err := out.Write(numbered(rnd, uint64(i)+1, size)); err != nil {
				sent <- err
				return
			}
			if i%200 == 199 { // all pass meanwhile, unless the last one was lost
				for end := time.Now().Add(time.Second); int(newest.Load()) <= i && time.Now().Before(end); {
					time.Sleep(100 * time.Microsecond)
				}
			}
		}
		sent <- nil
	}()
	last, arrived := uint64(0), 0
	buf := make([]byte, 2048)
	for {
		_ = in.SetReadDeadline(time.Now().Add(numberedLull))
		size, err := in.Read(buf)
		if err != nil {
			break
		}
		number, err := numberOf(buf[:size])
		if err != nil {
			return err
		}
		if number <= last {
			return fmt.Errorf("flow %d: datagram %d arrived after %d", flow, number, last)
		}
		last, arrived = number, arrived+1
		newest.Store(int64(number))
	}
	if arrived < n/2 {
		return fmt.Errorf("flow %d: only %d of %d datagrams arrived", flow, arrived, n)
	}
	return <-sent
}

// A peer that never answers stays on the fast path, although the daemon renews its handle every ten seconds.
func TestFastPathKeepsASilentPeer(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.join("--fast-path")
	}
	pingAll(a, b)
	a.waitFast(b)
	out, in := datagramPair(t, a, b)
	defer in.Close() // not before the end: the host would answer
	defer out.Close()
	before := a.iface().Counters
	n := uint64(0)
	for start := time.Now(); time.Since(start) < 14*time.Second; n++ {
		if _, err := out.Write(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Microsecond)
	}
	after := a.iface().Counters
	if sent := after["fast_tx_packets"] - before["fast_tx_packets"]; sent < n {
		t.Errorf("the fast path has carried %d of %d datagrams", sent, n)
	}
	for _, why := range []string{"fast_tx_stranger", "fast_tx_order", "fast_tx_closed"} {
		if after[why] != before[why] {
			t.Errorf("%s: %d frames", why, after[why]-before[why])
		}
	}
}

// An interface that cannot have a fast path works without one, and the status says why. So does doctor.
func TestNoFastPath(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join("--fast-path", "--ebpf=false")
	b.join()
	pingAll(a, b)
	if why := a.iface().NoFast; !strings.Contains(why, "(ebpf)") {
		t.Errorf("without the programs of the interface: %q", why)
	}
	if out, _ := a.daemon.command("doctor").Output(); !strings.Contains(string(out), "no_fast_path") {
		t.Errorf("doctor does not mention it:\n%s", out)
	}
	if why := b.iface().NoFast; why != "" {
		t.Errorf("without --fast-path: %q", why)
	}
}

// The segments of TCP streams stay in order too, whether their sizes fit the fast path or not, just as without a fast path.
func TestFastPathKeepsTCPInOrder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, path := range []string{slowPath, "--fast-path"} {
		t.Run(path, func(t *testing.T) {
			hosts := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			for _, h := range hosts {
				h.join(path, "--lanes", "2")
			}
			pingAll(a, b)
			if path != slowPath {
				a.waitFast(b)
			}
			before := a.fast()
			const streams = 4
			results := make(chan error, streams)
			for i := range streams {
				go func() { results <- tcpInOrder(t, a, b, i, form(4000, 1000000), path != slowPath) }()
			}
			for range streams {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
			c := a.iface().Counters
			n := a.fast() - before
			t.Logf("%d on the fast path, %d left to the daemon to keep their order, %d too long", n, c["fast_tx_order"], c["fast_tx_length"])
			if path != slowPath && (n < streams*1000 || c["fast_tx_order"] == 0) {
				t.Errorf("%d segments on the fast path, %d behind others", n, c["fast_tx_order"])
			}
		})
	}
}

// tcpInOrder makes n short and long writes to a TCP connection, and returns an error if a segment arrives after a later one; one in
// a thousand may with a fast path, because on a busy machine it may be overtaken in a processor's backlog (package bpf). Every
// twentieth write must arrive before the next one, so that no queue overflows. The sender repeats segments whose acknowledgements
// are late.
func tcpInOrder(t *testing.T, a, b *host, flow, n int, fast bool) error {
	out, in, err := tcpPair(a, b, numberedPort+10+flow)
	if err != nil {
		return err
	}
	defer out.Close()
	defer in.Close()
	var arrived atomic.Int64
	go func() {
		for buf := make([]byte, 1<<16); ; {
			size, err := in.Read(buf)
			arrived.Add(int64(size))
			if err != nil {
				return
			}
		}
	}()
	rng := rand.New(rand.NewPCG(uint64(flow), 2))
	data, sent := make([]byte, 8000), int64(0)
	for i := range n {
		size := 1 + rng.IntN(400)
		if rng.IntN(10) == 0 {
			size = 600 + rng.IntN(7400)
		}
		if _, err := out.Write(data[:size]); err != nil {
			return err
		}
		sent += int64(size)
		for start := time.Now(); i%20 == 19 && arrived.Load() < sent; time.Sleep(100 * time.Microsecond) {
			if time.Since(start) > repairLimit {
				return fmt.Errorf("flow %d: %d of %d bytes arrived", flow, arrived.Load(), sent)
			}
		}
	}
	sender, errOut := tcpInfo(out)
	receiver, errIn := tcpInfo(in)
	if err := errors.Join(errOut, errIn); err != nil {
		return err
	}
	t.Logf("flow %d: %d segments arrived, %d out of order; %d were sent again", flow, receiver.Data_segs_in, receiver.Rcv_ooopack, sender.Total_retrans)
	permitted := uint32(0)
	if fast {
		permitted = receiver.Data_segs_in / 1000
	}
	if receiver.Rcv_ooopack > permitted {
		return fmt.Errorf("flow %d: %d segments arrived out of order", flow, receiver.Rcv_ooopack)
	}
	return nil
}

// tcpPair returns the two ends of a TCP connection from one host to a port of another.
func tcpPair(a, b *host, port int) (out, in net.Conn, err error) {
	addr := net.JoinHostPort(b.ip4(), strconv.Itoa(port))
	var listener net.Listener
	b.Do(func() { listener, err = net.Listen("tcp", addr) })
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	a.Do(func() { out, err = net.Dial("tcp", addr) })
	if err != nil {
		return nil, nil, err
	}
	if in, err = listener.Accept(); err != nil {
		out.Close()
	}
	return out, in, err
}

func tcpInfo(conn net.Conn) (info *unix.TCPInfo, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	if failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); failed != nil {
		return nil, failed
	}
	return info, err
}
