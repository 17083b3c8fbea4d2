package udp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/hca/soft/udp/share"
	"ipoibd/link/linktest/nstest"
)

// kernel is the real one.
var kernel = share.Kernel{NewSockets: bpf.NewReuseportSockets, Program: bpf.LoadReuseport, Put: bpf.PutReuseportSocket}

// sharer is a transport that shares the port.
type sharer struct {
	transporttest.Host
	*share.Membership
	*udp.Transport
	reserve *udp.Reserve
}

// openSharer opens a transport on host 0.
func openSharer(t *testing.T, ns *nstest.Namespace, dir string) *sharer {
	t.Helper()
	s := &sharer{reserve: new(udp.Reserve)}
	s.Host = openHost(t, ns, 0, udp.Config{Reserve: s.reserve, Share: &share.Config{Dir: dir, Kernel: kernel}})
	t.Cleanup(func() { _ = s.reserve.Close() })
	s.adopt(t)
	return s
}

func (s *sharer) adopt(t *testing.T) {
	t.Helper()
	s.Transport = s.Host.Transport.(*udp.Transport)
	var err error
	if s.Membership, err = s.Transport.Membership(); s.Membership == nil || err != nil {
		t.Fatalf("the port is not shared: %v", err)
	}
}

func (s *sharer) end(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.Transport.Close(), s.reserve.Close()); err != nil {
		t.Error(err)
	}
}

// qpn returns a QPN of the daemon.
func (s *sharer) qpn() hca.QPN {
	first, last := s.QPNs()
	return (first + last) / 2
}

// datagram returns one for a QPN, with a text.
func datagram(to hca.QPN, text string) []byte {
	return append([]byte{0, 0, 0, 0, 0, byte(to >> 16), byte(to >> 8), byte(to)}, text...)
}

// expect checks that a host receives a datagram from a source port, and nothing before it.
func expect(t *testing.T, h transporttest.Host, port uint16, text string) {
	t.Helper()
	got := recvOne(t, h)
	if string(got.Data[8:]) != text || got.SrcPort != port {
		t.Errorf("received %q from port %d, want %q from port %d", got.Data[8:], got.SrcPort, text, port)
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// waitPorts waits until all know each other.
func waitPorts(t *testing.T, all ...*sharer) {
	t.Helper()
	var want []uint16
	for _, s := range all {
		want = append(want, s.SrcPort())
	}
	slices.Sort(want)
	for _, s := range all {
		eventually(t, fmt.Sprintf("ports %v, have %v", want, s.Ports()), func() bool { return slices.Equal(s.Ports(), want) })
	}
}

// Daemons on one address have their own QPNs. Each receives the datagrams for these, from
// other hosts and from each other, and the multicast of all. Datagrams for the QPNs of no
// daemon reach none.
func TestSharersAreSeparatedByQPN(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	remote := openHost(t, nsB, 1, udp.Config{})
	var all []*sharer
	for range 3 {
		all = append(all, openSharer(t, nsA, dir))
	}
	waitPorts(t, all...)
	for _, s := range all {
		if err := errors.Join(s.Join(group4), s.Join(group6)); err != nil {
			t.Fatal(err)
		}
	}
	from := func(h transporttest.Host, dst netip.Addr, to hca.QPN, text string) {
		t.Helper()
		src := h.IPv4
		if dst.Is6() {
			src = h.IPv6
		}
		sendOne(t, h, transport.Packet{Src: src, Dst: dst, Vec: [][]byte{datagram(to, text)}})
	}
	for _, addr := range []netip.Addr{all[0].IPv4, all[0].IPv6} {
		for i, to := range all {
			from(remote, addr, 60<<18+1, "for no one")
			from(remote, addr, to.qpn(), "from another host")
			expect(t, to.Host, remote.SrcPort(), "from another host")
			for j, s := range all {
				if i == j {
					continue
				}
				text := fmt.Sprintf("from %d to %d", j, i)
				from(s.Host, addr, 60<<18+1, "for no one")
				from(s.Host, addr, to.qpn(), text)
				expect(t, to.Host, s.SrcPort(), text)
			}
		}
	}
	if err := errors.Join(remote.Join(group4), remote.Join(group6)); err != nil {
		t.Fatal(err)
	}
	for _, group := range []netip.Addr{group4, group6} {
		for _, s := range all {
			from(s.Host, group, hca.QPNMulticast, "to all")
			expect(t, remote, s.SrcPort(), "to all")
			for _, to := range all {
				expect(t, to.Host, s.SrcPort(), "to all")
			}
		}
		from(remote, group, hca.QPNMulticast, "from another host to all")
		for _, to := range all {
			expect(t, to.Host, remote.SrcPort(), "from another host to all")
		}
	}
	for _, s := range all {
		if n := counterOf(t, s.Host, "socket_drops"); n != 0 {
			t.Errorf("socket_drops = %d, want 0", n)
		}
	}
}

// A daemon that is alone in its group receives multicast as well: the kernel runs the program
// for it then.
func TestLoneSharerReceivesMulticast(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	remote := openHost(t, nsB, 1, udp.Config{})
	s := openSharer(t, nsA, filepath.Join(t.TempDir(), "share"))
	for _, group := range []netip.Addr{group4, group6} {
		if err := s.Join(group); err != nil {
			t.Fatal(err)
		}
		src := remote.IPv4
		if group.Is6() {
			src = remote.IPv6
		}
		for range 3 {
			sendOne(t, remote, transport.Packet{Src: src, Dst: group, Vec: [][]byte{datagram(hca.QPNMulticast, "to all")}})
			expect(t, s.Host, remote.SrcPort(), "to all")
		}
	}
}

// A train for one daemon reaches it whole, from another host and from this one.
func TestSharersReceiveTrains(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	remote := openHost(t, nsB, 1, udp.Config{})
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	for _, from := range []transporttest.Host{remote, b.Host} {
		const segs = 40
		var vec [][]byte
		for i := range segs {
			vec = append(vec, datagram(a.qpn(), fmt.Sprintf("%02d", i)))
		}
		sendOne(t, from, transport.Packet{Src: from.IPv4, Dst: a.IPv4, Vec: vec, Segs: segs, SegSize: len(vec[0])})
		for i := range segs {
			expect(t, a.Host, from.SrcPort(), fmt.Sprintf("%02d", i))
		}
	}
}

// Each daemon receives its datagrams even if the underlay joins datagrams that may be forwarded
// (rx-udp-gro-forwarding). If it joins all datagrams of a flow (rx-gro-list), the transport
// reports that.
func TestSharersOnAnUnderlayThatJoins(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	// Datagrams are joined only while they wait for the end of a poll, so let them wait.
	dev := "/sys/class/net/" + nstest.Dev
	nsA.Run("unshare", "-m", "sh", "-c", "mount -t sysfs none /sys && echo 2000000 > "+dev+"/gro_flush_timeout && echo 2 > "+dev+"/napi_defer_hard_irqs")
	nsA.Run("ethtool", "-K", nstest.Dev, "gro", "on", "rx-udp-gro-forwarding", "on")
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	const each = 20
	const port = 50000
	nsB.Do(func() { // not through a transport: a socket that wants trains changes what the kernel joins
		conn, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, &net.UDPAddr{IP: a.IPv4.AsSlice(), Port: udp.Port})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for i := range 2 * each {
			if _, err := conn.Write(datagram([]*sharer{a, b}[i%2].qpn(), fmt.Sprintf("%02d", i))); err != nil {
				t.Fatal(err)
			}
		}
	})
	for i := range 2 * each {
		expect(t, []*sharer{a, b}[i%2].Host, port, fmt.Sprintf("%02d", i))
	}
	if a.Joined() || b.Joined() {
		t.Error("the underlay is said to join all datagrams")
	}
	b.end(t)
	nsA.Run("ethtool", "-K", nstest.Dev, "rx-gro-list", "on")
	if !openSharer(t, nsA, dir).Joined() {
		t.Error("the underlay joins all datagrams, which is not reported")
	}
}

// Datagrams from other sockets of the host are refused, also from the source port that a
// daemon had until it ended, whatever their addresses.
func TestSharersRefuseOtherSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	if err := errors.Join(a.Join(group4), a.Join(group6)); err != nil {
		t.Fatal(err)
	}
	port := b.SrcPort()
	b.end(t)
	waitPorts(t, a)
	var sent uint64
	for _, dst := range []netip.Addr{a.IPv4, a.IPv6, group4, group6} {
		src := a.IPv4
		if dst.Is6() {
			src = a.IPv6
		}
		for _, from := range []uint16{port, 0} {
			nsA.Do(func() { sendFrom(t, netip.AddrPortFrom(src, from), dst, datagram(a.qpn(), "forged")) })
			sent++
		}
	}
	eventually(t, "all are refused", func() bool { return counterOf(t, a.Host, "socket_drops") == sent })
	if n := counterOf(t, a.Host, "rx_packets"); n != 0 {
		t.Errorf("%d datagrams were received", n)
	}
}

// asUser runs f in a namespace on a thread of a user without capabilities.
func asUser(t *testing.T, ns *nstest.Namespace, user int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ns.Do(func() { // it locks the thread
			const same = ^uintptr(0)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(user), same); errno != 0 {
				t.Errorf("become user %d: %v", user, errno)
				return
			}
			f()
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); errno != 0 {
				t.Errorf("become root again: %v", errno)
			}
		})
	}()
	<-done
}

// Any user can bind the source port of a daemon on another netdev, and send with the address of
// the underlay through it. The daemons do not take that for the datagrams of a daemon.
func TestSharersRefuseTheirPortFromAnotherNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	nsA.Run("ip", "link", "set", "lo", "up")
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	if err := a.Join(group4); err != nil {
		t.Fatal(err)
	}
	dsts := []netip.Addr{a.IPv4, group4}
	asUser(t, nsA, 1000, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.BindToDevice(fd, "lo"), unix.Bind(fd, &unix.SockaddrInet4{Port: int(b.SrcPort())})); err != nil {
			t.Logf("the port cannot be bound: %v", err)
			return
		}
		control := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(a.State().Index), Spec_dst: a.IPv4.As4()})
		for _, dst := range dsts {
			if err := unix.Sendmsg(fd, datagram(a.qpn(), "forged"), control, &unix.SockaddrInet4{Port: udp.Port, Addr: dst.As4()}, 0); err != nil {
				t.Errorf("send to %s: %v", dst, err)
			}
		}
	})
	time.Sleep(200 * time.Millisecond)
	sendOne(t, b.Host, transport.Packet{Src: b.IPv4, Dst: a.IPv4, Vec: [][]byte{datagram(a.qpn(), "genuine")}})
	expect(t, a.Host, b.SrcPort(), "genuine")
}

// Processes of the users that containers may run as cannot join the group.
func TestUsersOfContainersCannotJoin(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	a := openSharer(t, nsA, filepath.Join(t.TempDir(), "share"))
	if a.Open() {
		t.Error("the group is open to each process of the user")
	}
	for _, user := range []int{65534, 65535, 1<<31 - 1} {
		asUser(t, nsA, user, func() {
			if fd, err := bindShared(nstest.Dev, [4]byte{}, udp.Port); err == nil {
				_ = unix.Close(fd)
				t.Errorf("user %d has joined the group", user)
			}
		})
	}
}

// sendFrom sends a datagram from an ordinary socket.
func sendFrom(t *testing.T, src netip.AddrPort, dst netip.Addr, data []byte) {
	t.Helper()
	l := index(t, nstest.Dev)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(
		unix.BindToDevice(fd, nstest.Dev), unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0),
		unix.Bind(fd, &unix.SockaddrInet6{Addr: src.Addr().As16(), Port: int(src.Port())}),
		unix.Sendto(fd, data, 0, &unix.SockaddrInet6{Port: udp.Port, Addr: dst.As16(), ZoneId: uint32(l)}),
	)
	if err != nil {
		t.Fatalf("send from %s to %s: %v", src, dst, err)
	}
}

// Eight daemons join at once and leave in any order. The group continues without those that created
// it, and a restarted daemon gets the free slot.
func TestSharersComeAndGo(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	remote := openHost(t, nsB, 1, udp.Config{})
	all := make([]*sharer, 8)
	var joins sync.WaitGroup
	for i := range all {
		s := &sharer{reserve: new(udp.Reserve)}
		all[i] = s
		t.Cleanup(func() { _ = s.reserve.Close() })
		joins.Go(func() {
			s.Host = openHost(t, nsA, 0, udp.Config{Reserve: s.reserve, Share: &share.Config{Dir: dir, Kernel: kernel}})
		})
	}
	joins.Wait()
	for _, s := range all {
		s.adopt(t)
	}
	check := func() {
		t.Helper()
		waitPorts(t, all...)
		for i, s := range all {
			sendOne(t, remote, transport.Packet{Src: remote.IPv4, Dst: s.IPv4, Vec: [][]byte{datagram(s.qpn(), "hello")}})
			expect(t, s.Host, remote.SrcPort(), "hello")
			if from := all[(i+1)%len(all)]; from != s {
				sendOne(t, from.Host, transport.Packet{Src: s.IPv4, Dst: s.IPv4, Vec: [][]byte{datagram(s.qpn(), "neighbour")}})
				expect(t, s.Host, from.SrcPort(), "neighbour")
			}
		}
	}
	check()
	lowest := all[0].qpn()
	for _, s := range all {
		lowest = min(lowest, s.qpn())
	}
	for len(all) > 1 {
		slices.SortFunc(all, func(a, b *sharer) int { return int(a.qpn()) - int(b.qpn()) }) // the creator goes first
		all[0].end(t)
		all = all[1:]
		check()
		again := openSharer(t, nsA, dir)
		if again.qpn() != lowest {
			t.Errorf("slot of QPN %v, want the lowest free one, of %v", again.qpn(), lowest)
		}
		all = append(all, again)
		check()
		again.end(t)
		all = all[:len(all)-1]
	}
}

// A transport whose Reserve keeps the membership has the same QPNs and port when it is opened
// again.
func TestSharerKeepsItsSlot(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	remote := openHost(t, nsB, 1, udp.Config{})
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	qpn, port := b.qpn(), b.SrcPort()
	for range 3 {
		if err := b.Transport.Close(); err != nil {
			t.Fatal(err)
		}
		sendOne(t, remote, transport.Packet{Src: remote.IPv4, Dst: a.IPv4, Vec: [][]byte{datagram(qpn, "meanwhile")}})
		b.Host = openHost(t, nsA, 0, udp.Config{Reserve: b.reserve, Share: &share.Config{Dir: dir, Kernel: kernel}})
		b.adopt(t)
		if b.qpn() != qpn || b.SrcPort() != port {
			t.Errorf("QPN %v and port %d, want %v and %d", b.qpn(), b.SrcPort(), qpn, port)
		}
		sendOne(t, remote, transport.Packet{Src: remote.IPv4, Dst: a.IPv4, Vec: [][]byte{datagram(qpn, "afterwards")}})
		expect(t, b.Host, remote.SrcPort(), "afterwards")
	}
}

// If the files of the registrations are removed, the daemons continue with those that they know, and
// no daemon can join, because it cannot get their map.
func TestSharersSurviveRemovedFiles(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // several looks
	sendOne(t, a.Host, transport.Packet{Src: a.IPv4, Dst: b.IPv4, Vec: [][]byte{datagram(b.qpn(), "hello")}})
	expect(t, b.Host, a.SrcPort(), "hello")
	if names := slices.Concat(a.Strangers(), b.Strangers()); len(names) > 0 {
		t.Errorf("strangers %q", names)
	}
	nsA.Do(func() {
		_, err := udp.Open(udp.Config{Netdev: nstest.Dev, Reserve: new(udp.Reserve), Share: &share.Config{Dir: dir, Kernel: kernel}})
		if !errors.Is(err, udp.ErrPortTaken) {
			t.Errorf("a third daemon: %v", err)
		}
	})
}

// If the kernel refuses the program, the transport has the port alone, and knows why.
func TestWithoutProgramThePortIsNotShared(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	var reserve udp.Reserve
	t.Cleanup(func() { _ = reserve.Close() })
	refusing := kernel
	refusing.Program = func(int) (int, error) { return -1, bpf.ErrNotPermitted }
	a := openHost(t, nsA, 0, udp.Config{Reserve: &reserve, Share: &share.Config{Dir: dir, Kernel: refusing}})
	if m, why := a.Transport.(*udp.Transport).Membership(); m != nil || !errors.Is(why, bpf.ErrNotPermitted) {
		t.Errorf("membership %v, reason %v", m, why)
	}
	b := openHost(t, nsB, 1, udp.Config{})
	sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: a.IPv4, Vec: [][]byte{datagram(60<<18, "hello")}})
	expect(t, a, b.SrcPort(), "hello")

	// Another daemon cannot share the port with it, and its error names the process that holds it.
	nsA.Do(func() {
		_, err := udp.Open(udp.Config{Netdev: nstest.Dev, Reserve: new(udp.Reserve), Share: &share.Config{Dir: dir, Kernel: kernel}})
		if !errors.Is(err, udp.ErrPortTaken) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
			t.Errorf("Open: %v", err)
		}
	})
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

// allCapabilities and changeOwner are sets of capabilities.
const (
	allCapabilities = 1<<64 - 1
	changeOwner     = 1 << unix.CAP_CHOWN
)

// A process of root without capabilities cannot bind the port in any way.
func TestRootWithoutCapabilitiesCannotJoin(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, _ := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openSharer(t, nsA, dir), openSharer(t, nsA, dir)
	waitPorts(t, a, b)
	if a.Open() || b.Open() {
		t.Error("the group is open to each process of the user")
	}
	for _, netdev := range []string{"", nstest.Dev} {
		for _, addr := range [][4]byte{{}, a.IPv4.As4(), {127, 0, 0, 1}, group4.As4()} {
			for _, port := range []uint16{udp.Port, a.SrcPort()} {
				unprivileged(t, nsA, allCapabilities, func() {
					if fd, err := bindShared(netdev, addr, port); err == nil {
						_ = unix.Close(fd)
						t.Errorf("port %d can be bound on netdev %q, address %v", port, netdev, addr)
					}
				})
			}
		}
	}
	time.Sleep(3 * time.Second) // several looks
	if names := slices.Concat(a.Strangers(), b.Strangers()); len(names) > 0 {
		t.Errorf("strangers %q", names)
	}
}

func bindShared(netdev string, addr [4]byte, port uint16) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if netdev != "" {
		err = unix.BindToDevice(fd, netdev)
	}
	mapped := netip.AddrFrom4(addr).As16()
	if addr == [4]byte{} {
		mapped = [16]byte{}
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(fd, &unix.SockaddrInet6{Port: int(port), Addr: mapped}))
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Without CAP_CHOWN, a process of the same user can join the group and even replace its
// program. The daemons name it, and attach their program again.
func TestStrangerInAnOpenGroup(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	dir := filepath.Join(t.TempDir(), "share")
	remote := openHost(t, nsB, 1, udp.Config{})
	s := &sharer{reserve: new(udp.Reserve)}
	t.Cleanup(func() { _ = s.reserve.Close() })
	unprivileged(t, nsA, changeOwner, func() {
		tr, err := udp.Open(udp.Config{Netdev: nstest.Dev, Reserve: s.reserve, Share: &share.Config{Dir: dir, Kernel: kernel}})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = tr.Close() })
		s.Host = transporttest.Host{Transport: tr, IPv4: netip.MustParseAddr(nstest.IPv4(0)), IPv6: netip.MustParseAddr(nstest.IPv6(0))}
	})
	if t.Failed() {
		return
	}
	s.adopt(t)
	if !s.Open() {
		t.Fatal("the group is closed")
	}
	second := openSharer(t, nsA, dir) // with CAP_CHOWN: it does as the first
	if !second.Open() {
		t.Error("the second daemon is in another group")
	}
	waitPorts(t, s, second)
	waitState(t, s.Transport, "the link to be up", func(s transport.State) bool { return s.Up })

	var stranger int
	unprivileged(t, nsA, allCapabilities, func() {
		var err error
		if stranger, err = bindShared(nstest.Dev, [4]byte{}, udp.Port); err != nil {
			t.Errorf("join the open group: %v", err)
			return
		}
		prog := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 2}} // the third socket of the group
		err = unix.SetsockoptSockFprog(stranger, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &prog[0]})
		if err != nil {
			t.Errorf("replace the program: %v", err)
		}
	})
	defer unix.Close(stranger)
	send := func() {
		sendOne(t, remote, transport.Packet{Src: remote.IPv4, Dst: s.IPv4, Vec: [][]byte{datagram(s.qpn(), "hello")}})
	}
	stolen := func() bool {
		_, _, err := unix.Recvfrom(stranger, make([]byte, 64), unix.MSG_DONTWAIT)
		return err == nil
	}
	eventually(t, "the daemons name the stranger", func() bool {
		send()
		return len(s.Strangers()) == 1 && len(second.Strangers()) == 1
	})
	for stolen() {
	}
	send()
	time.Sleep(100 * time.Millisecond)
	if stolen() {
		t.Error("the stranger still receives datagrams")
	}
	if who := fmt.Sprintf("(pid %d)", os.Getpid()); !strings.Contains(s.Strangers()[0], who) {
		t.Errorf("strangers %q, want %s", s.Strangers(), who)
	}
	if counterOf(t, s.Host, "rx_packets") == 0 {
		if _, err := s.Recv(make([]transport.Packet, 1)); err != nil {
			t.Error(err)
		}
	}
}
