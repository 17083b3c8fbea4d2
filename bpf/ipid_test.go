package bpf_test

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

// ways are the ways to attach the program.
var ways = []struct {
	name   string
	attach func(netdev int) (*bpf.IPID, error)
}{
	{"tcx or clsact", bpf.NewIPID},
	{"clsact", bpf.NewIPIDByFilter},
}

// skBuff is the part of struct __sk_buff (linux/bpf.h) that a test run of a program uses.
type skBuff struct {
	Len, PktType, Mark uint32
	_                  [45]uint32
}

// receiver is a socket for RoCEv2 datagrams that shows their marks.
type receiver struct {
	tb   testing.TB
	fd   int
	wire int // a packet socket that sees the IPv4 headers
}

// newReceiver opens the sockets in the network namespace of the calling thread.
func newReceiver(tb testing.TB) *receiver {
	tb.Helper()
	r := &receiver{tb: tb, fd: udpSocket(tb, rocePort, [3]int{unix.SOL_SOCKET, unix.SO_RCVMARK, 1}, [3]int{unix.SOL_UDP, unix.UDP_GRO, 1})}
	wire, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0x0008) // ETH_P_IP in network order
	must(tb, err)
	tb.Cleanup(func() { unix.Close(wire) })
	must(tb, unix.SetsockoptTimeval(wire, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	r.wire = wire
	return r
}

// next returns the mark of the next message, the size of the segments of a train (0: it is one
// datagram), and the identification that was on the wire.
func (r *receiver) next() (mark uint32, segment int, id uint16) {
	r.tb.Helper()
	header := make([]byte, 20)
	for header[9] != unix.IPPROTO_UDP {
		_, _, err := unix.Recvfrom(r.wire, header, 0)
		must(r.tb, err)
	}
	data, oob := make([]byte, 1<<16), make([]byte, 256)
	_, n, _, _, err := unix.Recvmsg(r.fd, data, oob, 0)
	must(r.tb, err)
	mark, ok := control(oob[:n], unix.SOL_SOCKET, unix.SO_MARK)
	if !ok {
		r.tb.Error("a message without its mark")
	}
	size, _ := control(oob[:n], unix.SOL_UDP, unix.UDP_GRO)
	return mark, int(size), binary.BigEndian.Uint16(header[4:])
}

// sendWithID sends a datagram with a chosen identification by a raw socket.
func sendWithID(tb testing.TB, raw int, src, dst [4]byte, id uint16, port uint16) {
	tb.Helper()
	payload := bth(1)
	udp := append([]byte{0, byte(8 + len(payload)), 0, 0}, payload...) // without a checksum
	p := ipv4(src, dst, unix.IPPROTO_UDP, 0x4000, [2]uint16{0xc000, port}, udp...)
	binary.BigEndian.PutUint16(p[4:], id)
	must(tb, unix.Sendto(raw, p, 0, &unix.SockaddrInet4{Addr: dst}))
}

// The socket receives the identification of each datagram exactly, and of a train that of its
// first datagram. After Close it receives no mark.
func TestIPIDOfEachDatagram(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) { testIPID(t, way.attach) })
	}
}

func testIPID(t *testing.T, attach func(netdev int) (*bpf.IPID, error)) {
	a, b := nstest.Pair(t, 1500)
	src, dst := [4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}
	var raw, plain int
	a.Do(func() {
		var err error
		raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		must(t, err)
		t.Cleanup(func() { unix.Close(raw) })
		plain = udpSocket(t, 0, [3]int{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT})
	})
	var r *receiver
	b.Do(func() {
		eth, err := netlink.LinkByName(nstest.Dev)
		must(t, err)
		p, err := attach(eth.Attrs().Index)
		must(t, err)
		t.Cleanup(func() { b.Do(func() { must(t, p.Close()) }) })
		r = newReceiver(t)
		ids := []uint16{0, 1, 0x2000, 0x7fff, 0x8000, 0xffff, 0x1234}
		for _, id := range ids {
			sendWithID(t, raw, src, dst, id, rocePort)
			mark, _, wire := r.next()
			got, known := bpf.KnownID(mark)
			// The kernel itself chooses the identification of a raw packet that has 0.
			if !known || got != wire || id != 0 && got != id {
				t.Errorf("mark %#x: identification %d, known %t; sent %d, on the wire %d", mark, got, known, id, wire)
			}
		}
		train := make([]byte, 10*100)
		must(t, unix.SetsockoptInt(plain, unix.SOL_UDP, unix.UDP_SEGMENT, 100))
		sendTo(t, plain, dst, train)
		mark, segment, wire := r.next()
		if got, known := bpf.KnownID(mark); !known || got != wire || segment != 100 {
			t.Errorf("a train with segments of %d bytes: identification %d, known %t, on the wire %d", segment, got, known, wire)
		}
		c, err := p.Counts()
		must(t, err)
		if n := uint64(len(ids)); c.Marked != n+1 || c.Taken != 0 || c.Segments[1] != n || c.Segments[4] != 1 {
			t.Errorf("%+v, want %d datagrams and a train of 10", c, n)
		}
		must(t, p.Close())
		must(t, p.Close())
		sendWithID(t, raw, src, dst, 7, rocePort)
		if mark, _, _ := r.next(); mark != 0 {
			t.Errorf("mark %#x after Close", mark)
		}
	})
}

// Other packets, and those that have a mark, keep it. Truncated packets do no harm.
func TestIPIDTouchesNothingElse(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	p, err := bpf.NewIPID(1)
	must(t, err)
	defer p.Close()
	dup, err := unix.FcntlInt(uintptr(p.Program()), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	prog, err := ebpf.NewProgramFromFD(dup)
	must(t, err)
	defer prog.Close()
	run := func(frame []byte, mark uint32) uint32 {
		in, out := skBuff{Mark: mark}, skBuff{}
		ret, err := prog.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64), Context: in, ContextOut: &out})
		must(t, err)
		if int32(ret) != -1 {
			t.Errorf("result %d", int32(ret))
		}
		return out.Mark
	}
	udp := func(protocol byte, fragment, port uint16) []byte {
		return ether(0x0800, ipv4(addrA, addrB, protocol, fragment, [2]uint16{1, port}, make([]byte, 20)...))
	}
	roce := udp(unix.IPPROTO_UDP, 0x4000, rocePort)
	options := append(append(roce[:34:34], 1, 1, 1, 1), roce[34:]...)
	options[14] = 0x46
	for _, c := range []struct {
		name     string
		frame    []byte
		in, want uint32
	}{
		{"RoCEv2", roce, 0, 0x12342000},
		{"RoCEv2 behind options", options, 0, 0x12342000},
		{"marked", roce, 1, 1},
		{"other port", udp(unix.IPPROTO_UDP, 0x4000, 4792), 0, 0},
		{"TCP", udp(unix.IPPROTO_TCP, 0x4000, rocePort), 0, 0},
		{"first fragment", udp(unix.IPPROTO_UDP, 0x2000, rocePort), 0, 0},
		{"later fragment", udp(unix.IPPROTO_UDP, 3, rocePort), 0, 0},
		{"IPv6", ether(0x86dd, ipv6(addrA6, addrB6, unix.IPPROTO_UDP, [2]uint16{1, rocePort}, make([]byte, 8)...)), 0, 0},
	} {
		if got := run(c.frame, c.in); got != c.want {
			t.Errorf("%s: mark %#x, want %#x", c.name, got, c.want)
		}
	}
	for n := 34; n < len(roce); n++ { // the kernel refuses a test run with less than an IP header
		want := uint32(0)
		if n >= 38 {
			want = 0x12342000
		}
		if got := run(roce[:n], 0); got != want {
			t.Errorf("%d bytes: mark %#x, want %#x", n, got, want)
		}
	}
}

// requireFilters checks how many filters the loopback device has.
func requireFilters(t *testing.T, want int, when string) {
	t.Helper()
	got, err := netlink.FilterList(loopback(t), netlink.HANDLE_MIN_INGRESS)
	if err != nil || len(got) != want {
		t.Errorf("%d filters %s, %v; want %d", len(got), when, err, want)
	}
}

func loopback(t *testing.T) netlink.Link {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	return lo
}

func newLoopbackFilter(t *testing.T) *bpf.IPID {
	t.Helper()
	p, err := bpf.NewIPIDByFilter(loopback(t).Attrs().Index)
	must(t, err)
	return p
}

// The next process removes the filter that a killed process left behind, and no other filter.
func TestIPIDRemovesALeftFilter(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	first := newLoopbackFilter(t)
	for range 3 {
		newLoopbackFilter(t).Abandon()
		requireFilters(t, 2, "after one was left")
	}
	last := newLoopbackFilter(t)
	requireFilters(t, 2, "when the left ones are removed")
	must(t, first.Close())
	requireFilters(t, 1, "after the first one's end")
	must(t, last.Close())
	requireFilters(t, 0, "after the last one's end")
}

// Processes that share a netdev do not disturb each other: each has its own program, and when one
// ends, the other one continues to report identifications.
func TestIPIDOfTwoProcesses(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, way := range ways {
		must(t, netlink.LinkSetUp(loopback(t)))
		a, err := way.attach(loopback(t).Attrs().Index)
		must(t, err)
		b, err := way.attach(loopback(t).Attrs().Index)
		must(t, err)
		r := newReceiver(t)
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		must(t, err)
		t.Cleanup(func() { unix.Close(raw) })
		home := [4]byte{127, 0, 0, 1}
		requireMark := func(want bool, when string) {
			t.Helper()
			sendWithID(t, raw, home, home, 77, rocePort)
			mark, _, _ := r.next()
			if id, known := bpf.KnownID(mark); known != want || want && id != 77 {
				t.Errorf("%s, mark %#x %s", way.name, mark, when)
			}
		}
		requireMark(true, "with two")
		must(t, a.Close())
		requireMark(true, "after the first one's end")
		c, err := b.Counts()
		must(t, err)
		if c.Marked != 2 || c.Taken != 0 {
			t.Errorf("%s: %+v, want 2 marked", way.name, c)
		}
		must(t, b.Close())
		requireMark(false, "after the second one's end")
		unix.Close(r.fd)
	}
}

// Closing succeeds after the netdev was deleted.
func TestIPIDOfADeletedNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, way := range ways {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}))
		l, err := netlink.LinkByName("v0")
		must(t, err)
		p, err := way.attach(l.Attrs().Index)
		must(t, err)
		must(t, netlink.LinkDel(l))
		if err := p.Close(); err != nil {
			t.Errorf("%s: %v", way.name, err)
		}
	}
}
