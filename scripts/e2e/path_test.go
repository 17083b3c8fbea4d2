package e2e

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

const (
	// adaptLimit is ten times the second after which ib0 should have the MTU of a path.
	adaptLimit = 10 * time.Second
	// forgetMTU is how long the kernel keeps a router's report in these tests, in seconds; by
	// default 600.
	forgetMTU = 5
	// widenLimit is twice the time until ib0 uses a path that has become wide: until the kernel has
	// forgotten the report, and then 20 s.
	widenLimit = 2 * (forgetMTU + 20 + 1) * time.Second
	// reexamineLimit is twice the time after which a report that was believed is examined again, if the first try after
	// 10 s is too early.
	reexamineLimit = 2 * (10 + 20) * time.Second
)

// route is two hosts, each with a link of 1500 to its own router, and the link between the routers.
type route struct {
	a, b        *host
	left, right *nstest.Namespace // the routers
	addr        [2]string         // of the hosts
	gateway     [2]string
}

// newRoute returns two hosts without daemons; the MTU is that of the link between their routers.
func newRoute(t *testing.T, ipv6 bool, mtu int) *route {
	t.Helper()
	r := &route{left: nstest.New(t), right: nstest.New(t), addr: [2]string{"10.1.0.1", "10.2.0.1"}, gateway: [2]string{"10.1.0.254", "10.2.0.254"}}
	between, length := [2]string{"10.3.0.1", "10.3.0.2"}, 24
	family, any4 := "-4", "10.0.0.0/8"
	if ipv6 {
		r.addr, r.gateway = [2]string{"fd01::1", "fd02::1"}, [2]string{"fd01::fe", "fd02::fe"}
		between, length = [2]string{"fd03::1", "fd03::2"}, 64
		family, any4 = "-6", "fd00::/8"
	}
	nstest.Veth(t, r.left, "mid", r.right, "mid", mtu)
	for i, router := range []*nstest.Namespace{r.left, r.right} {
		h := &host{Namespace: nstest.New(t), tb: t, number: i, dir: shortDir(t)}
		nstest.Veth(t, h.Namespace, nstest.Dev, router, nstest.Dev, underlayMTU)
		router.Run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
		h.Run("sysctl", "-qw", fmt.Sprintf("net.ipv4.route.mtu_expires=%d", forgetMTU), fmt.Sprintf("net.ipv6.route.mtu_expires=%d", forgetMTU), "net.ipv4.icmp_echo_ignore_broadcasts=0")
		for _, end := range []struct {
			ns        *nstest.Namespace
			dev, addr string
		}{{h.Namespace, nstest.Dev, r.addr[i]}, {router, nstest.Dev, r.gateway[i]}, {router, "mid", between[i]}} {
			if cidr := fmt.Sprintf("%s/%d", end.addr, length); ipv6 {
				end.ns.AddIPv6(end.dev, cidr)
			} else {
				end.ns.Run("ip", "addr", "add", cidr, "dev", end.dev)
			}
		}
		h.Run("ip", family, "route", "add", "default", "via", r.gateway[i])
		router.Run("ip", family, "route", "add", any4, "via", between[1-i])
		*[]**host{&r.a, &r.b}[i] = h
	}
	return r
}

// join starts the daemons, with further arguments.
func (r *route) join(args ...string) {
	r.a.tb.Helper()
	for i, h := range []*host{r.a, r.b} {
		h.join(append([]string{"--gid", r.addr[i], "--peer", r.addr[1-i]}, args...)...)
	}
	r.a.waitReaches(r.b)
}

// setMTU changes the MTU of the link between the routers.
func (r *route) setMTU(mtu int) {
	for _, router := range []*nstest.Namespace{r.left, r.right} {
		router.Run("ip", "link", "set", "mid", "mtu", fmt.Sprint(mtu))
	}
}

// sends sends three packets of a size, which may not be fragmented, to another host, and reports whether all are
// answered within a second.
func (h *host) sends(dst string, size int) bool { return h.sendsWithin(time.Second, dst, size) }

// delivers is sends for packets that must be answered, for which a busy machine may need longer.
func (h *host) delivers(dst string, size int) bool { return h.sendsWithin(repairLimit, dst, size) }

func (h *host) sendsWithin(limit time.Duration, dst string, size int) bool {
	answered := true
	for range 3 {
		err := h.Command("ping", "-n", "-L", "-I", ifName, "-c", "1", "-W", fmt.Sprint(limit.Seconds()), "-M", "do", "-s", fmt.Sprint(size-28), dst).Run()
		answered = answered && err == nil
	}
	return answered
}

// waitMTU waits until ib0 has an MTU.
func (h *host) waitMTU(limit time.Duration, want int) (took time.Duration) {
	h.tb.Helper()
	start := time.Now()
	for h.iface().MTU != want {
		if time.Since(start) > limit {
			h.tb.Fatalf("host %d: the MTU is %d, want %d within %v\n%s\n%s", h.number, h.iface().MTU, want, limit, h.describe(), h.daemon.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// A narrow link on the way to a peer lowers the MTU of ib0 as soon as its router reports that, and
// TCP, UDP and multicast work. When the link is wide again, so is ib0, after a while.
func TestNarrowLinkOnTheWay(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct {
		name       string
		ipv6       bool
		wide, tiny int
	}{{"IPv4", false, 1444, 1344}, {"IPv6", true, 1424, 1324}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRoute(t, c.ipv6, 1400)
			a, b := r.a, r.b
			r.join()
			if m, n := a.iface().MTU, b.iface().MTU; m != c.wide || n != c.wide {
				t.Fatalf("MTUs %d and %d at first, want %d", m, n, c.wide)
			}
			start := time.Now()
			a.stream(b) // returns when TCP has sent 1 MiB
			took := time.Since(start)
			a.waitMTU(adaptLimit, c.tiny)
			t.Logf("TCP has sent 1 MiB after %v, over a path that turned out narrow", took.Round(time.Millisecond))
			if i := a.iface(); i.Limit.To != r.addr[1] || i.Limit.MTU != 1400 || i.Notice != "" {
				t.Errorf("limit %+v, notice %q, want the peer's path", i.Limit, i.Notice)
			}
			out, _ := a.daemon.command("status").CombinedOutput()
			if want := fmt.Sprintf("%d, because of the path to %s, whose MTU is 1400", c.tiny, r.addr[1]); !strings.Contains(string(out), want) {
				t.Errorf("the status lacks %q:\n%s", want, out)
			}
			// b has sent nothing large yet, and learns now.
			b.sends(a.ip4(), c.wide)
			b.waitMTU(adaptLimit, c.tiny)
			for _, h := range []*host{a, b} {
				other := map[*host]*host{a: b, b: a}[h]
				for what, dst := range map[string]string{"unicast": other.ip4(), "multicast": "224.0.0.1"} {
					if !h.delivers(dst, c.tiny) {
						t.Errorf("host %d: %s of %d bytes is not answered", h.number, what, c.tiny)
					}
				}
				if out, err := h.Command("ping", "-n", "-c", "3", "-i", "0.05", "-s", "8000", other.ip4()).CombinedOutput(); err != nil {
					t.Errorf("host %d: fragments do not pass: %v\n%s", h.number, err, out)
				}
			}

			r.setMTU(1500)
			t.Logf("the path is used again %v after it became wide", a.waitMTU(widenLimit, c.wide).Round(time.Second))
			b.waitMTU(widenLimit, c.wide)
			if !a.delivers(b.ip4(), c.wide) || !b.delivers(a.ip4(), c.wide) {
				t.Errorf("packets of %d bytes are not answered", c.wide)
			}
			if n := a.logged(`msg="MTU set"`); n != 3 {
				t.Errorf("the MTU was set %d times, want at the start, once down and once up\n%s", n, a.daemon.log)
			}
		})
	}
}

// A locked MTU of a route makes the kernel ignore what routers report. An MTU of a route that is
// lower than the netdev's determines the MTU of ib0 before anything is lost, even below what IPv6
// needs, because it is this host's own configuration.
func TestRouteWithAnMTU(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	r := newRoute(t, false, 1400)
	a := r.a
	route := func(mtu ...string) {
		t.Helper()
		a.Run("ip", append([]string{"route", "replace", "default", "via", r.gateway[0]}, mtu...)...)
	}
	route("mtu", "lock", "1500")
	r.join("--mtu", "1400")
	if a.sends(r.b.ip4(), 1400) {
		t.Error("the path carries packets of 1400 bytes, so the test proves nothing")
	}
	if i := a.iface(); i.MTU != 1400 || i.Limit.To != "" {
		t.Errorf("MTU %d, limit %+v, want the router's reports ignored", i.MTU, i.Limit)
	}

	route("mtu", "1400")
	a.waitMTU(adaptLimit, 1344)
	a.requireLogged(`msg="requested MTU is too large for the path to a peer; using a smaller one" interface=ib0 requested=1400 mtu=1344 peer=10.2.0.1 path_mtu=1400`, 1)
	if !a.delivers(r.b.ip4(), 1344) {
		t.Error("packets of 1344 bytes are not answered")
	}
	route("mtu", "1300")
	a.waitMTU(adaptLimit, 1244)
	a.requireLogged(`msg="MTU below 1280`, 1)
	if n := a.iface().Notice; !strings.Contains(n, "cannot have IPv6") {
		t.Errorf("notice %q, want IPv6 in it", n)
	}
	a.daemon.stop()
	a.start("--gid", r.addr[0], "--peer", r.addr[1], "--mtu", "1400")
	a.waitCarrier()
	if n := a.logged("MTU set"); a.iface().MTU != 1244 || n != 0 {
		t.Errorf("MTU %d, set %d times, want 1244 from the start", a.iface().MTU, n)
	}
}

// Reports of routers, which anyone can forge, do not cost ib0 its IPv6 addresses. The status says
// what to do if the path is really that narrow.
func TestPathTooNarrowForIPv6(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	r := newRoute(t, false, 1300)
	a := r.a
	r.join()
	a.sends(r.b.ip4(), 1444)
	a.waitMTU(adaptLimit, 1280)
	eventually(t, adaptLimit, "a notice", func() bool {
		return strings.Contains(a.iface().Notice, "the path to 10.2.0.1 has an MTU of 1300, according to a router") && strings.Contains(a.iface().Notice, "to 1244")
	})
	a.requireLogged("carries less than the interface's MTU", 1)
	if a.sends(r.b.ip4(), 1280) {
		t.Error("the path carries packets of 1280 bytes, so the test proves nothing")
	}
	if !strings.Contains(a.Run("ip", "addr", "show", "dev", ifName), a.ip6()) {
		t.Error("the IPv6 address is gone")
	}
	for _, h := range []*host{a, r.b} {
		h.Run("ip", "link", "set", ifName, "mtu", "1244")
	}
	eventually(t, adaptLimit, "the notice is gone", func() bool { return !strings.Contains(a.iface().Notice, "10.2.0.1") })
	if !a.delivers(r.b.ip4(), 1244) {
		t.Error("packets of 1244 bytes are not answered")
	}
}

// On one segment, without configured peers, the daemon learns of a narrow route when it first
// sends to the peer.
func TestNarrowRouteToAPeerOfTheSegment(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a := hosts[0]
	a.Run("ip", "route", "add", nstest.IPv4(2), "dev", nstest.Dev, "mtu", "1400")
	for _, h := range hosts {
		h.join()
	}
	a.waitReaches(hosts[1])
	time.Sleep(2 * time.Second)
	if m := a.iface().MTU; m != 1444 {
		t.Errorf("MTU %d, want 1444 before anything is sent to the third host", m)
	}
	a.waitReaches(hosts[2])
	took := a.waitMTU(adaptLimit, 1344)
	t.Logf("the MTU follows %v after the first packet", took.Round(time.Millisecond))
	for _, h := range hosts[1:] { // these two may still send more
		if !h.delivers(a.ip4(), 1344) {
			t.Errorf("host %d: packets of 1344 bytes are not answered", h.number)
		}
	}
}

// If the routers' reports are lost, the host cannot know that its large packets are. Each remedy of
// the documentation helps: the MTU of the route, and that of ib0.
func TestSilentlyNarrowPath(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	r := newRoute(t, false, 1400)
	a := r.a
	for _, router := range []*nstest.Namespace{r.left, r.right} {
		router.Run("nft", "add table ip test; add chain ip test out { type filter hook output priority 0; }; add rule ip test out icmp type destination-unreachable drop")
	}
	r.join()
	if a.sends(r.b.ip4(), 1444) {
		t.Error("the path carries packets of 1444 bytes, so the test proves nothing")
	}
	if m := a.iface().MTU; m != 1444 {
		t.Errorf("MTU %d, want 1444: nobody has reported anything", m)
	}
	r.b.Run("ip", "link", "set", ifName, "mtu", "1344")
	a.Run("ip", "route", "replace", "default", "via", r.gateway[0], "mtu", "1400")
	a.waitMTU(adaptLimit, 1344)
	if !a.delivers(r.b.ip4(), 1344) || !r.b.delivers(a.ip4(), 1344) {
		t.Error("packets of 1344 bytes are not answered")
	}
}

// A host that forges reports of routers, about datagrams between others, does not lower the MTU of ib0: a longer
// packet passes to the peer, so the report is wrong.
func TestForgedReports(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, forger := hosts[0], hosts[1], hosts[2]
	a.join()
	b.join()
	pingAll(a, b)
	set := a.logged("MTU set")
	a.forgeReports(forger, b, 68)
	eventually(t, adaptLimit, "the report is examined", func() bool { return a.logged("ignoring a router's report of a narrow path") > 0 })
	a.forgeReports(forger, b, 60)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if i := a.iface(); i.MTU != 1444 || i.Limit.To != "" {
			t.Fatalf("MTU %d, limit %+v, want 1444 without one", i.MTU, i.Limit)
		}
	}
	if !a.delivers(b.ip4(), 1444) || !b.delivers(a.ip4(), 1444) {
		t.Error("packets of 1444 bytes are not answered")
	}
	if n := a.logged("MTU set"); n != set {
		t.Errorf("the MTU was set %d times, was %d\n%s", n, set, a.daemon.log)
	}
}

// Without a peer that could show that a forged report is wrong, it lowers the MTU of ib0 by a bounded amount, and
// IPv6 stays. Once the peer is there, the MTU rises again.
func TestForgedReportsAboutAnAbsentPeer(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, forger := hosts[0], hosts[1], hosts[2]
	a.join("--peer", b.underlay().String())
	a.forgeReports(forger, b, 68)
	a.waitMTU(adaptLimit, 1280)
	if i := a.iface(); i.MTU != 1280 || i.Limit.MTU >= 1280 {
		t.Errorf("MTU %d, limit %+v, want 1280, and the forged path", i.MTU, i.Limit)
	}
	b.join("--peer", a.underlay().String())
	a.waitReaches(b)
	t.Logf("the MTU rises %v later", a.waitMTU(reexamineLimit, 1444).Round(time.Second))
}

// forgeReports makes another host send reports about all datagrams of h to a peer: the path has this MTU.
func (h *host) forgeReports(forger, peer *host, mtu uint16) {
	t := h.tb
	t.Helper()
	var fd int
	forger.Do(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP); err != nil {
			t.Fatal(err)
		}
	})
	defer unix.Close(fd)
	src, dst := h.underlay().As4(), peer.underlay().As4()
	to := &unix.SockaddrInet4{Addr: src}
	for port := range h.boundPorts() {
		// RFC 792 and RFC 1191: type 3, code 4, the MTU, then the IPv4 header and 8 bytes of the datagram.
		report := binary.BigEndian.AppendUint16([]byte{3, 4, 0, 0, 0, 0}, mtu)
		report = append(report, 0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
		report = append(append(report, src[:]...), dst[:]...)
		report = binary.BigEndian.AppendUint16(report, port)
		report = append(report, 4791>>8, 4791&0xff, 5, 0xc8, 0, 0)
		var sum uint32
		for i := 0; i < len(report); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(report[i:]))
		}
		for sum>>16 != 0 {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(report[2:], ^uint16(sum))
		if err := unix.Sendto(fd, report, 0, to); err != nil {
			t.Fatal(err)
		}
	}
}
