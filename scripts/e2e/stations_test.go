package e2e

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// Groups that every station joins.
const (
	groupIP4 = "239.44.0.1"
	groupIP6 = "ff05::44"
)

// station is a network stack with an address on the fabric: a host, or one of those behind its ib0.
type station struct {
	*nstest.Namespace
	dev    string
	number int // of its addresses
	behind *host
}

func (s station) String() string {
	return fmt.Sprintf("station %d of host %d", s.number, s.behind.number)
}

func (s station) ip4() string { return guestIP4(s.number) }
func (s station) ip6() string { return guestIP6(s.number) }

// join makes the station a member of the groups, until the test ends, and answer requests to them.
func (s station) join(t *testing.T) {
	t.Helper()
	s.Run("sysctl", "-q", "-w", "net.ipv4.icmp_echo_ignore_broadcasts=0")
	(&host{Namespace: s.Namespace, tb: t}).python(fmt.Sprintf(`
import signal, socket, struct
index = socket.if_nametoindex(%q)
four, six = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("=4s4sI", socket.inet_aton(%q), bytes(4), index))
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, %q) + struct.pack("=I", index))
print("joined")
signal.pause()`, s.dev, groupIP4, groupIP6))
}

// bridged starts host h with ib0 in a bridge, with n guests, and with a macvlan interface on the bridge if n is 3.
func (h *host) bridged(n int) []station {
	h.tb.Helper()
	h.start()
	h.bridge()
	h.waitCarrier()
	out := []station{{h.Namespace, "br0", h.number + 1, h}}
	for i := range n {
		number := 50*(h.number+2) + i
		out = append(out, station{h.guest(fmt.Sprintf("guest%d", i), number), nstest.Dev, number, h})
	}
	if n == 3 {
		number := 50*(h.number+2) + 20
		out = append(out, station{h.macvlan("br0", number), "mv0", number, h})
	}
	return out
}

// TestStations: guests and a macvlan interface behind the ib0 of one host, guests behind that of another, and a host
// alone reach each other in all pairs, and by multicast. The daemon knows their groups.
func TestStations(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	all := slices.Concat(hosts[0].bridged(3), hosts[1].bridged(2))
	hosts[2].join()
	all = append(all, station{hosts[2].Namespace, ifName, 3, hosts[2]})

	pingStations(t, all, 1) // the first one resolves the address
	pingStations(t, all, form(50, 1000))

	for _, s := range all {
		s.join(t)
	}
	for _, s := range all {
		for _, group := range []string{groupIP4, groupIP6} {
			eventually(t, repairLimit, fmt.Sprintf("all members of %s answer %v", group, s), func() bool {
				missing := unanswered(s, group, all)
				if len(missing) > 0 {
					t.Logf("%v: no answer from %v", s, missing)
				}
				return len(missing) == 0
			})
		}
	}
	a := hosts[0]
	requireGroups(t, a, all)
	// After a restart, the daemon asks for them.
	a.daemon.kill()
	a.start()
	a.waitCarrier()
	requireGroups(t, a, all)
	if n := a.iface().Counters["neigh_queries"]; n == 0 {
		t.Error("the daemon has not asked for groups")
	}
}

// startWith starts the daemon with a configuration file.
func (h *host) startWith(config string) {
	h.tb.Helper()
	control := filepath.Join(h.dir, "control.sock")
	h.daemon = launch(h.tb, h.Namespace, control, "run", "--config", h.write("ipoibd.yaml", config), "--control", control, "--log-level", "debug")
}

// pingStations sends count echo requests between all stations of different hosts, and fails the test on any loss. A station
// runs one ping at a time, because each reply fills the socket buffers of all that run there.
func pingStations(t *testing.T, all []station, count int) {
	t.Helper()
	var stations sync.WaitGroup
	var pairs atomic.Int64
	for i, from := range all {
		stations.Go(func() {
			for _, to := range all[i+1:] {
				if from.behind == to.behind {
					continue
				}
				for _, dst := range []string{to.ip4(), to.ip6()} {
					pairs.Add(1)
					if err := from.ping(dst, count); err != nil {
						t.Errorf("%v to %s: %v", from, dst, err)
					}
				}
			}
		})
	}
	stations.Wait()
	if t.Failed() {
		for i, s := range all {
			if i == 0 || all[i-1].behind != s.behind {
				t.Log(s.behind.describe())
			}
		}
		t.FailNow()
	}
	t.Logf("%d pairs, each with %d pings: none lost", pairs.Load(), count)
}

// ping sends count echo requests to an address, and returns an error if the kernel does not receive as many replies.
func (s station) ping(dst string, count int) error {
	before := nstest.EchoReplies(s.Run)
	out, err := s.Command("ping", "-n", "-q", "-c", strconv.Itoa(count), "-i", "0.01", "-W", "3", dst).CombinedOutput()
	for end := time.Now().Add(repairLimit); nstest.EchoReplies(s.Run) < before+count; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d echo replies: %w\n%s", nstest.EchoReplies(s.Run)-before, count, err, out)
		}
	}
	if strings.Contains(string(out), "duplicates") {
		return fmt.Errorf("a reply came twice:\n%s", out)
	}
	return nil
}

var bytesFrom = regexp.MustCompile(`bytes from (\S+): `)

// unanswered sends two echo requests to a group, and returns the stations from which no answer came.
func unanswered(from station, group string, all []station) (missing []string) {
	out, err := from.Command("ping", "-n", "-c", "2", "-i", "0.3", "-w", "1", "-I", from.dev, group).CombinedOutput()
	answered := map[string]bool{}
	for _, m := range bytesFrom.FindAllStringSubmatch(string(out), -1) {
		answered[m[1]] = true
	}
	for _, s := range all {
		// The source of an IPv6 answer may be any address of the station.
		is6 := strings.Contains(group, ":")
		parent := s.behind == from.behind && (s.dev == "mv0" && from.dev == "br0" || s.dev == "br0" && from.dev == "mv0")
		// A macvlan interface and the one below it do not reach each other.
		if s == from || parent || !is6 && answered[s.ip4()] || is6 && (answered[s.ip6()] || answered[s.linkLocal()]) {
			continue
		}
		missing = append(missing, s.String())
	}
	if len(missing) == len(all)-1 {
		missing = append(missing, fmt.Sprintf("%v\n%s", err, out))
	}
	return missing
}

func (s station) linkLocal() string {
	out := s.Run("ip", "-6", "-o", "address", "show", "dev", s.dev, "scope", "link")
	f := strings.Fields(out)
	if i := slices.Index(f, "inet6"); i >= 0 {
		ip, _, _ := strings.Cut(f[i+1], "/")
		return ip
	}
	return ""
}

func (s station) mac() string {
	f := strings.Fields(s.Run("ip", "-o", "link", "show", "dev", s.dev))
	return f[slices.Index(f, "link/ether")+1]
}

// requireGroups waits until a host's status shows the groups of all stations behind it.
func requireGroups(t *testing.T, h *host, all []station) {
	t.Helper()
	start := time.Now()
	eventually(t, 4*repairLimit, "the status shows the groups", func() bool {
		for _, s := range all {
			if s.behind != h {
				continue
			}
			mac := s.mac()
			known := slices.ContainsFunc(h.iface().Stations, func(x stationStatus) bool {
				return x.MAC == mac && slices.Contains(x.Groups, groupIP4) && slices.Contains(x.Groups, groupIP6)
			})
			if !known {
				return false
			}
		}
		return true
	})
	t.Logf("host %d: the groups were known after %v", h.number, time.Since(start).Round(time.Millisecond))
}

// TestStationMoves: a guest moves to another host, and announces itself as guests do that were migrated. It is reached
// soon; the others lose nothing.
func TestStationMoves(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, c := hosts[0], hosts[1], hosts[2]
	at := slices.Concat(a.bridged(2), b.bridged(1))
	c.join()
	observer := station{c.Namespace, ifName, 3, c}
	all := append(at, observer)
	pingStations(t, all, 1)

	for _, h := range hosts {
		h.lengthenQueues(ifName)
	}
	others := []*probe{c.probeStation(at[2]), c.probeStation(at[0]), c.probeStation(at[4])}
	guest := at[1]
	for n, to := range []*host{b, a, b} {
		p := c.probeStation(guest)
		p.waitAnswered(t, repairLimit)
		start := time.Now()
		guest.moveTo(to, fmt.Sprintf("moved%d", n))
		p.waitAnswered(t, repairLimit)
		t.Logf("guest on host %d: silent for %v", to.number, p.silence(start))
		p.silent.Store(true)
	}
	requireNoneLost(t, others, hosts)
}

// probeStation starts a probe of a station.
func (h *host) probeStation(s station) *probe {
	h.tb.Helper()
	return h.probeAddr(s.ip4(), s.Namespace)
}

// requireNoneLost checks that all requests of probes are answered. If not, it shows when they were sent, and what the
// daemons and the kernel have dropped.
func requireNoneLost(t *testing.T, probes []*probe, hosts []*host) {
	t.Helper()
	for i, p := range probes {
		if p.lost() == 0 {
			continue
		}
		p.mu.Lock()
		refused := maps.Clone(p.refused)
		p.mu.Unlock()
		var sent []string
		for n, e := range p.since(time.Time{}) {
			if e.answered.IsZero() {
				sent = append(sent, fmt.Sprintf("%d at %s (refused: %v)", n, e.asked.Format(time.StampMilli), refused[n]))
			}
		}
		t.Errorf("probe %d lost %d requests: %v", i, len(sent), sent[:min(len(sent), 20)])
	}
	if !t.Failed() {
		return
	}
	for _, h := range hosts {
		for _, i := range h.counted().Interfaces {
			b := book{t, map[string]uint64{}}
			b.add("", i.Counters)
			t.Logf("host %d, %s: drops %v, kernel's counters %v", h.number, i.Name, b.drops(), i.Kernel)
		}
		t.Logf("host %d drops %v\n%s", h.number, h.book().drops(), h.Run("ip", "neigh"))
	}
	t.Log(nstest.Counters())
}

// lengthenQueues lets the queues of interfaces hold the frames of several probes for seconds, because a busy machine may
// let the daemon wait that long. The daemon's own 1024 frames are those of a quarter of a second.
func (h *host) lengthenQueues(names ...string) {
	for _, name := range names {
		h.Run("ip", "link", "set", name, "txqueuelen", "16384")
	}
}

// moveTo moves a guest to the bridge of another host. It keeps its MAC and addresses, and announces them.
func (s *station) moveTo(h *host, name string) {
	mac := s.mac()
	s.Run("ip", "link", "delete", s.dev)
	nstest.Veth(h.tb, s.Namespace, nstest.Dev, h.Namespace, name, h.iface().MTU)
	s.dev, s.behind = nstest.Dev, h
	s.Run("ip", "link", "set", s.dev, "address", mac)
	s.Run("sysctl", "-q", "-w", "net.ipv4.conf."+s.dev+".arp_notify=1", "net.ipv6.conf."+s.dev+".ndisc_notify=1")
	h.Run("ip", "link", "set", name, "master", "br0")
	s.Run("ip", "addr", "add", s.ip4()+"/24", "dev", s.dev)
	s.Run("ip", "addr", "add", s.ip6()+"/64", "dev", s.dev, "nodad")
	s.Run("arping", "-q", "-c", "2", "-w", "1", "-U", "-I", s.dev, s.ip4())
}

// TestStationMovesBetweenInterfaces: the same between two interfaces of one daemon, which have the same GID.
func TestStationMovesBetweenInterfaces(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, c := hosts[0], hosts[1]
	a.startWith("devices:\n- underlay: " + nstest.Dev + "\ninterfaces:\n- name: ib0\n- name: ib1\n")
	for i, name := range []string{ifName, "ib1"} {
		br := fmt.Sprintf("br%d", i)
		a.Run("ip", "link", "add", br, "address", fmt.Sprintf("02:00:00:00:44:0%d", i+1), "type", "bridge")
		a.Run("ip", "link", "set", name, "up", "master", br)
		a.Run("ip", "link", "set", br, "up")
	}
	c.join()
	all := []station{{c.Namespace, ifName, 2, c}}
	for i := range 4 {
		name, number := fmt.Sprintf("guest%d", i), 101+i
		g := nstest.New(t)
		nstest.Veth(t, g, nstest.Dev, a.Namespace, name, 1400)
		a.Run("ip", "link", "set", name, "master", fmt.Sprintf("br%d", i%2))
		g.Run("ip", "addr", "add", guestIP4(number)+"/24", "dev", nstest.Dev)
		g.Run("ip", "addr", "add", guestIP6(number)+"/64", "dev", nstest.Dev, "nodad")
		all = append(all, station{g, nstest.Dev, number, a})
	}
	eventually(t, carrierLimit, "the guests are reached", func() bool {
		return !slices.ContainsFunc(all[1:], func(s station) bool {
			return c.Command("ping", "-n", "-c", "1", "-W", "0.2", s.ip4()).Run() != nil
		})
	})
	pingStations(t, all, 5)
	a.lengthenQueues(ifName, "ib1")
	c.lengthenQueues(ifName)
	others := []*probe{c.probeStation(all[2]), c.probeStation(all[3]), c.probeStation(all[4])}
	guest := all[1]
	for n := range 4 {
		p := c.probeStation(guest)
		p.waitAnswered(t, repairLimit)
		start := time.Now()
		a.Run("ip", "link", "set", "guest0", "nomaster")
		a.Run("ip", "link", "set", "guest0", "master", fmt.Sprintf("br%d", (n+1)%2))
		guest.Run("arping", "-q", "-c", "2", "-w", "1", "-U", "-I", guest.dev, guest.ip4())
		p.waitAnswered(t, repairLimit)
		t.Logf("move %d: silent for %v", n, p.silence(start))
		p.silent.Store(true)
	}
	requireNoneLost(t, others, hosts)
}

// TestStationsKeepTheirConnections: TCP connections of three stations survive a kill, hand-overs and a reset of the
// device.
func TestStationsKeepTheirConnections(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	all := a.bridged(3)
	b.join()
	all = append(all, station{b.Namespace, ifName, 2, b})
	pingStations(t, all, 1)
	var talks []*chatter
	for _, s := range all[1:4] {
		talks = append(talks, converse(t, b, s))
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"kill", func() { a.daemon.kill(); a.start() }},
		{"hand-over", a.handOver},
		{"reset of the device", func() { requireRun(t, a.daemon.command("reset", "device")) }},
		{"reset of the other device", func() { requireRun(t, b.daemon.command("reset", "device")) }},
		{"kill of the other", func() { b.daemon.kill(); b.start() }},
	} {
		start := time.Now()
		step.do()
		for _, c := range talks {
			c.requireAlive(t, step.name, start)
		}
	}
}

func requireRun(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// chatter is a TCP connection over which a line is sent and returned every 10 ms.
type chatter struct {
	mu      sync.Mutex
	last    time.Time     // of the last answer
	longest time.Duration // between two answers since the last check
	err     error
}

// converse connects a host to a station.
func converse(t *testing.T, h *host, to station) *chatter {
	t.Helper()
	var server net.Listener
	var err error
	to.Do(func() { server, err = net.Listen("tcp4", to.ip4()+":7") }) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		if conn, err := server.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	var conn net.Conn
	h.Do(func() { conn, err = net.DialTimeout("tcp4", to.ip4()+":7", repairLimit) }) //nolint:noctx // likewise
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &chatter{last: time.Now()}
	go func() {
		answers := bufio.NewReader(conn)
		for i := 0; ; i++ {
			line := fmt.Sprintf("line %d\n", i)
			_, err := io.WriteString(conn, line)
			got := ""
			if err == nil {
				got, err = answers.ReadString('\n')
			}
			if err == nil && got != line {
				err = fmt.Errorf("%q came back as %q", line, got)
			}
			c.mu.Lock()
			if err != nil {
				c.err = err
				c.mu.Unlock()
				return
			}
			c.longest = max(c.longest, time.Since(c.last))
			c.last = time.Now()
			c.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return c
}

// requireAlive waits until there was an answer after a time, for long enough to see what was lost.
func (c *chatter) requireAlive(t *testing.T, after string, start time.Time) {
	t.Helper()
	eventually(t, 3*repairLimit, "the connection works after "+after, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err != nil {
			t.Fatalf("the connection has ended after %s: %v", after, c.err)
		}
		return time.Since(start) > time.Second && time.Since(c.last) < 200*time.Millisecond
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%s: the longest silence was %v", after, c.longest.Round(time.Millisecond))
	c.longest = 0
}

// TestInventedMACs: a guest invents 100,000 MACs within seconds, each with an address. Memory is bounded, and those who
// were known lose nothing.
func TestInventedMACs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	all := a.bridged(2)
	b.join()
	for _, h := range hosts { // a daemon that has waited for a second lets the pings of that second out at once
		h.lengthenQueues(ifName)
	}
	pingStations(t, append(all, station{b.Namespace, ifName, 2, b}), 1)
	before := a.memory("VmRSS")
	p := b.probeStation(all[1])
	p.waitAnswered(t, repairLimit)
	start := time.Now()
	port := newPacketSocketOn(&host{Namespace: all[2].Namespace, tb: t}, nstest.Dev)
	const macs, burst = 100_000, 100
	read := a.framesRead()
	for i := range macs {
		m := ipoib.MAC{2, 9, byte(i >> 16), byte(i >> 8), byte(i)}
		arp := ipoib.EtherARP{Op: ipoib.ARPRequest, SHA: m, SPA: netip.AddrFrom4([4]byte{10, 45 + byte(i>>16), byte(i >> 8), byte(i)}), TPA: netip.AddrFrom4([4]byte{10, 44, 0, 250})}
		_ = port.try(ether(ipoib.Broadcast, m, ipoib.EtherTypeARP, arp.Append(nil)))
		if i%burst == burst-1 { // without more than a burst, the queue of ib0 has room for the answers of the known guest
			time.Sleep(10 * time.Millisecond)
			eventually(t, repairLimit, "the daemon reads them", func() bool { return a.framesRead() >= read+burst })
			read = a.framesRead()
		}
	}
	t.Logf("%d MACs in %v; no answer of the known guest for at most %v", macs, time.Since(start), p.silence(start))
	p.waitAnswered(t, repairLimit)
	requireNoneLost(t, []*probe{p}, hosts)
	after, st := a.memory("VmRSS"), a.iface()
	t.Logf("resident memory %d KiB, was %d; %d stations; refused %d", after, before, len(st.Stations), st.Counters["neigh_drop_stations_full"])
	if after > before+32<<10 || len(st.Stations) > 1100 || st.Counters["neigh_drop_stations_full"] == 0 {
		t.Errorf("memory %d KiB, was %d; %d stations", after, before, len(st.Stations))
	}
	if !strings.Contains(st.Notice, "behind the interface") {
		t.Errorf("notice %q", st.Notice)
	}
}

// framesRead returns how many frames the daemon has read from ib0.
func (h *host) framesRead() (n int) {
	h.tb.Helper()
	h.Do(func() {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			h.tb.Fatal(err)
		}
		_, counts, _ := strings.Cut(string(text), ifName+":")
		if f := strings.Fields(counts); len(f) > 9 {
			n, err = strconv.Atoi(f[9]) // packets sent, after 8 columns for those received and the bytes sent
		}
		if err != nil || n == 0 {
			h.tb.Fatalf("frames sent to %s: %v\n%s", ifName, err, text)
		}
	})
	return n
}

// TestVirtualRouter: keepalived moves an address between guests of two hosts. It is reached within a moment of its own
// decision.
func TestVirtualRouter(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	guests := []station{hosts[0].bridged(1)[1], hosts[1].bridged(1)[1]}
	c := hosts[2]
	c.join()
	const shared = "10.44.0.250"
	for i, g := range guests {
		dir := shortDir(t)
		conf := g.behind.write("keepalived.conf", fmt.Sprintf("global_defs { vrrp_version 3 }\n"+
			"vrrp_instance shared { state BACKUP\n interface %s\n virtual_router_id 7\n priority %d\n advert_int 0.2\n"+
			" virtual_ipaddress { %s/24 }\n}\n", g.dev, 100+i, shared))
		cmd := g.Command("keepalived", "--dont-fork", "--vrrp", "--log-console", "--pid="+dir+"/pid", "--vrrp_pid="+dir+"/vrrp", "--use-file="+conf)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, cmd) })
	}
	has := func(g station) bool {
		return strings.Contains(g.Run("ip", "-4", "address", "show", "dev", g.dev), shared)
	}
	eventually(t, repairLimit, "the second one is the master", func() bool { return has(guests[1]) && !has(guests[0]) })
	p := c.probeAddr(shared, guests[0].Namespace, guests[1].Namespace)
	p.waitAnswered(t, repairLimit)
	guests[1].Run("ip", "link", "set", guests[1].dev, "down")
	eventually(t, repairLimit, "the first one takes over", func() bool { return has(guests[0]) })
	start := time.Now()
	p.waitAnswered(t, repairLimit)
	t.Logf("reached %v after the other one has taken over", time.Since(start).Round(time.Millisecond))
}
