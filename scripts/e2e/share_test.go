package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// sharer returns the container of a daemon that runs in h's namespace and shares the port
// there. Its interface is in the container, so that the kernel does not deliver its packets to
// the other interfaces locally.
func (h *host) sharer(number int, dir string) *host {
	h.tb.Helper()
	in := &host{Namespace: nstest.New(h.tb), tb: h.tb, number: number, dir: shortDir(h.tb)}
	// Router solicitations continue for longer than the accounts wait.
	in.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
	in.startSharer(h, dir)
	in.enterContainer(h)
	return in
}

// startSharer starts the daemon of a container in h's namespace.
func (in *host) startSharer(h *host, dir string) {
	in.tb.Helper()
	in.daemon = launch(in.tb, h.Namespace, in.control(), in.sharing(dir)...)
}

// abort starts the daemon, and kills it after some time.
func (in *host) abort(h *host, dir string, after time.Duration) {
	in.tb.Helper()
	cmd := h.Command(os.Getenv(daemonEnv), in.sharing(dir)...)
	if err := cmd.Start(); err != nil {
		in.tb.Fatalf("start the daemon: %v", err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func (in *host) control() string { return filepath.Join(in.dir, "control.sock") }

// sharing returns the arguments of a daemon that shares the port.
func (in *host) sharing(dir string) []string {
	return []string{
		"run", "--name", in.outside(), "--underlay", nstest.Dev,
		"--control", in.control(), "--log-level", "debug", "--share-port=" + dir, "--follow",
	}
}

// outside is the name of the interface before it enters the container.
func (in *host) outside() string { return fmt.Sprintf("ib%d", in.number) }

// enterContainer moves the interface to its container and waits for its carrier.
func (in *host) enterContainer(h *host) {
	in.tb.Helper()
	h.Run("ip", "link", "set", in.outside(), "netns", in.Path(), "name", ifName)
	in.Run("ip", "link", "set", ifName, "up")
	in.addAddrs(ifName)
	in.waitCarrier()
}

// asPowerless is asStranger for a thread of root without capabilities.
func (h *host) asPowerless(f func()) (wait func()) {
	h.tb.Helper()
	ready := make(chan error, 1)
	wait = apart(func() {
		err := h.enter()
		if err == nil {
			var none [2]unix.CapUserData
			err = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		}
		ready <- err
		if err == nil {
			f()
		}
	})
	if err := <-ready; err != nil {
		h.tb.Fatalf("drop the capabilities in the host's namespace: %v", err)
	}
	return wait
}

// tryJoining binds a socket to a port with all options that let sockets share it. The caller
// closes it.
func tryJoining(addr netip.Addr, device string, port uint16) (fd int, err error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(port), Addr: addr.As16()})
	if addr.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: addr.As4()}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if device != "" {
		err = unix.BindToDevice(fd, device)
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// intruders are processes that try to join the daemons that share the port.
type intruders struct {
	stop  atomic.Bool
	waits []func()
	mu    sync.Mutex
	tries map[string]int
	wrong map[string]int // outcomes other than a port in use
}

// besiege makes another user, and root without capabilities, try to bind the port, without
// end.
func (h *host) besiege() *intruders {
	h.tb.Helper()
	a := &intruders{tries: map[string]int{}, wrong: map[string]int{}}
	addrs := []netip.Addr{
		netip.IPv4Unspecified(), netip.IPv6Unspecified(), h.underlay(), netip.MustParseAddr("127.0.0.1"), groupAddr,
		netip.MustParseAddr(nstest.IPv6(h.number)),
	}
	for who, as := range map[string]func(func()) func(){"another user": h.asStranger, "root without capabilities": h.asPowerless} {
		a.waits = append(a.waits, as(func() {
			for !a.stop.Load() {
				for _, addr := range addrs {
					for _, device := range []string{"", nstest.Dev} {
						fd, err := tryJoining(addr, device, roce.Port)
						a.mu.Lock()
						a.tries[who]++
						if !errors.Is(err, unix.EADDRINUSE) {
							a.wrong[fmt.Sprintf("%s, %s, netdev %q: %v", who, addr, device, err)]++
						}
						a.mu.Unlock()
						if err == nil {
							_ = unix.Close(fd)
						}
						time.Sleep(time.Millisecond)
					}
				}
			}
		}))
	}
	return a
}

// end stops the tries and fails the test if one had another outcome than a port in use.
func (a *intruders) end(t *testing.T) {
	t.Helper()
	a.stop.Store(true)
	for _, wait := range a.waits {
		wait()
	}
	t.Logf("tries to bind the port: %v", a.tries)
	if len(a.wrong) > 0 || len(a.tries) != 2 {
		t.Errorf("tries %v, outcomes other than a port in use: %v", a.tries, a.wrong)
	}
}

// shareVolley is how many datagrams of each kind an attacker sends.
const shareVolley = 50

// forge sends datagrams for each daemon from an ordinary socket of h, and multicast that does
// not leave the host. It returns how many datagrams the sockets of the daemons get.
func (h *host) forge(sharers []*host) (received uint64) {
	h.tb.Helper()
	local := newMallory(h)
	local.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MULTICAST_TTL, 0) })
	msg := message(ipoib.EtherTypeIPv4, ipv4Echo(addr("10.44.0.77"), addr(sharers[0].ip4())))
	for range shareVolley {
		local.send(groupAddr, rightPacket(hca.QPNMulticast, msg))
		for _, s := range sharers {
			local.send(h.underlay(), rightPacket(s.daemon.status().Interfaces[0].QP.QPN, msg))
		}
		received += 2 * uint64(len(sharers))
	}
	return received
}

// transfer sends some megabytes by TCP to another container and returns the rate in Mb/s.
func (in *host) transfer(to *host) float64 {
	in.tb.Helper()
	out, err := in.Command("iperf3", "--client", to.ip4(), "--bytes", "4M", "--json").Output()
	var result struct {
		End struct {
			Received struct {
				Bytes uint64  `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err == nil {
		err = json.Unmarshal(out, &result)
	}
	if err != nil || result.End.Received.Bytes == 0 {
		in.tb.Errorf("iperf3 from host %d to host %d: %v\n%s\n%s\n%s", in.number, to.number, err, out, in.describe(), to.describe())
	}
	return result.End.Received.Rate / 1e6
}

// Three daemons in one network namespace share an underlay. They and a host on the other side
// of the wire all reach each other, by ping and iperf3, while another user and root without
// capabilities attack. None of them can bind the port, no forged datagram gets in, and every
// datagram is accounted for.
func TestSharedPort(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	inside := filepath.Join(shortDir(t), "share")
	a, b := hosts[0], hosts[1]
	var all []*host
	for _, number := range []int{0, 2, 3} {
		all = append(all, a.sharer(number, inside))
	}
	sharers := all[:3:3]
	// The daemon on the other side shares its port with no one, and counts its own multicast.
	all = append(all, b.sharer(1, inside))
	qpns := map[hca.QPN]bool{}
	for _, in := range all {
		qpns[in.daemon.status().Interfaces[0].QP.QPN>>18] = true
		in.background("iperf3", "--server")
		eventually(t, startLimit, "iperf3 listens", func() bool {
			return strings.Contains(in.Run("ss", "-Hltn", "sport = 5201"), "5201")
		})
	}
	if len(qpns) != 3 { // the fourth has a slot of another group
		t.Errorf("QPNs begin with %v, want three slots", qpns)
	}
	pingAll(all...)
	before := rest(t, all...)

	attack := a.besiege()
	var forged uint64
	var forging sync.WaitGroup
	forging.Go(func() { forged = a.forge(sharers) })
	pingAll(all...)
	for _, from := range all {
		for _, to := range all {
			if from != to {
				t.Logf("iperf3 from host %d to host %d: %.0f Mb/s", from.number, to.number, from.transfer(to))
			}
		}
	}
	forging.Wait()
	pingAll(all...)
	attack.end(t)

	after := rest(t, all...)
	var sent, received, own, refused uint64
	for i, in := range all {
		k := after[i].since(before[i])
		in.checkDaemon(k)
		sent += k.of("hca_wire_tx_packets")
		received += k.of("hca_wire_rx_packets")
		own += k.of("hca_rx_own_multicast")
		refused += k.of("hca_wire_socket_drops")
		t.Logf("host %d: sent %d, received %d, own %d", in.number, k.of("hca_wire_tx_packets"), k.of("hca_wire_rx_packets"), k.of("hca_rx_own_multicast"))
		if n := k.of("hca_rx_own_source", "hca_rx_drop_no_qp"); n > 0 {
			t.Errorf("host %d: %d datagrams of others", in.number, n)
		}
		if log := in.daemon.log.String(); strings.Contains(log, "not a daemon uses UDP port") {
			t.Errorf("host %d reports a process in the group:\n%s", in.number, log)
		}
	}
	// All four receive each multicast datagram, its sender included, which counts it.
	a.equal("datagrams received, one for each and four for multicast", received, sent+3*own)
	a.equal("datagrams refused", refused, forged)
}

// Eight daemons start at once, and are killed and restarted one after the other, also while they
// start. The others reach each other all the time, and the restarted one again.
func TestSharersAreKilled(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	dir := filepath.Join(shortDir(t), "share")
	a, far := hosts[0], hosts[1].sharer(1, dir)
	all := make([]*host, 8)
	var starts sync.WaitGroup
	for i := range all {
		starts.Go(func() { all[i] = a.sharer(i+2, dir) })
	}
	starts.Wait()
	for i, in := range all {
		far.waitReaches(in)
		in.waitReaches(all[(i+1)%len(all)])
	}
	for range form(4, 50) {
		i := rand.IntN(len(all))
		all[i].daemon.kill()
		next, last := all[(i+1)%len(all)], all[(i+len(all)-1)%len(all)]
		next.waitReaches(last)
		far.waitReaches(next)
		// The interface stays in its container, where the daemon cannot adopt it.
		all[i].Run("ip", "link", "del", ifName)
		for range 3 {
			all[i].abort(a, dir, rand.N(100*time.Millisecond))
		}
		all[i].startSharer(a, dir)
		all[i].enterContainer(a)
		t.Logf("host %d is reached again after %v by host %d, after %v from outside", all[i].number,
			next.waitReaches(all[i]).Round(time.Millisecond), next.number, far.waitReaches(all[i]).Round(time.Millisecond))
	}
	for _, in := range all {
		if in.daemon.gone() {
			t.Errorf("host %d: %v", in.number, in.daemon.err)
		}
	}
}

// joinWithout is join for a daemon without some capabilities.
func (h *host) joinWithout(t *testing.T, capabilities string, args ...string) {
	t.Helper()
	program, wrapper := os.Getenv(daemonEnv), filepath.Join(shortDir(t), "ipoibd")
	script := "#!/bin/sh\nexec setpriv --bounding-set=" + capabilities + " " + program + " \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(daemonEnv, wrapper)
	h.join(args...)
	t.Setenv(daemonEnv, program)
}

// Without CAP_CHOWN, root without capabilities can join the daemons that share the port. The
// notice of the device reports that, and names the process that has joined.
func TestStrangerAmongSharersIsReported(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	a.joinWithout(t, "-chown", "--share-port="+filepath.Join(shortDir(t), "share"))
	shows := func(text string) func() bool {
		return func() bool {
			out, _ := a.daemon.command("status").CombinedOutput()
			return strings.Contains(string(out), text)
		}
	}
	eventually(t, noticeLimit, "a notice of CAP_CHOWN", shows("CAP_CHOWN"))
	release, joined := make(chan struct{}), make(chan error, 1)
	wait := a.asPowerless(func() {
		fd, err := tryJoining(netip.IPv6Unspecified(), nstest.Dev, roce.Port)
		joined <- err
		<-release
		_ = unix.Close(fd)
	})
	if err := <-joined; err != nil {
		t.Errorf("join: %v", err)
	}
	eventually(t, noticeLimit, "a notice of the process", shows(findHolder))
	if out := a.Run("sh", "-c", findHolder); !strings.Contains(out, fmt.Sprintf("pid=%d,", os.Getpid())) {
		t.Errorf("%s: %s, want this process", findHolder, out)
	}
	close(release)
	wait()
	eventually(t, noticeLimit, "no notice of the process", func() bool { return !shows(findHolder)() })
	if n := strings.Count(a.daemon.log.String(), "a process that is not a daemon uses UDP port"); n != 1 {
		t.Errorf("%d log lines, want 1:\n%s", n, a.daemon.log)
	}
}

// Without CAP_BPF, a daemon that is configured to share the port logs that once and does not
// share it. A second daemon waits until the port is free.
func TestSharingNeedsCAP_BPF(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	dir := filepath.Join(shortDir(t), "share")
	a.joinWithout(t, "-bpf,-sys_admin", "--share-port="+dir)
	b.join()
	pingAll(a, b)
	const sentence = "cannot share UDP port 4791"
	eventually(t, noticeLimit, "the log", func() bool { return strings.Contains(a.daemon.log.String(), sentence) })
	for line := range strings.Lines(a.daemon.log.String()) {
		if strings.Contains(line, sentence) {
			t.Log(line)
		}
	}
	a.daemon.requirePost("/v1/reset", map[string]string{"scope": "device"})
	b.waitReaches(a)
	time.Sleep(3 * time.Second) // some looks
	if n := strings.Count(a.daemon.log.String(), sentence); n != 1 {
		t.Errorf("%d log lines that the port cannot be shared, want 1:\n%s", n, a.daemon.log)
	}
	if out, _ := a.daemon.command("status").CombinedOutput(); !strings.Contains(string(out), "CAP_BPF") {
		t.Errorf("the status does not name CAP_BPF:\n%s", out)
	}

	second := &host{Namespace: a.Namespace, tb: t, number: 5, dir: shortDir(t)}
	second.startSharer(a, dir)
	second.Run("ip", "link", "set", second.outside(), "up")
	eventually(t, startLimit, "the second daemon says how to find the first", func() bool {
		i := second.daemon.status().Interfaces[0]
		return i.State != "up" && strings.Contains(i.Reason, findHolder)
	})
	if out := a.Run("sh", "-c", findHolder); !strings.Contains(out, fmt.Sprintf("pid=%d,", a.daemon.cmd.Process.Pid)) {
		t.Errorf("%s: %s, want process %d", findHolder, out, a.daemon.cmd.Process.Pid)
	}
}
