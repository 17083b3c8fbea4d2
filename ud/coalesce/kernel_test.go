package coalesce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"ipoibd/hca/join"
	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// The tests of this file compare with the kernel: it receives the same segments one by one and
// joined, through a TAP in a network namespace.

const patience = 20 * time.Second // only a failing test waits that long

const mtu = 2044 // of the TAPs

// The addresses of the frames that segment builds.
const (
	peer4, host4 = "10.0.0.1", "10.0.0.254"
	peer6, host6 = "fd00::1", "fd00::fe"
	peerMAC      = "02:00:00:00:00:02"
)

// tap is a TAP in a namespace.
type tap struct {
	*link.TAP
	udp bool // the kernel takes segmentation of UDP
}

// openTAP opens the TAP ib0 in a namespace, up and without offloads.
func openTAP(t testing.TB, ns *nstest.Namespace, mac byte) tap {
	t.Helper()
	var out tap
	ns.Do(func() {
		var err error
		out.TAP, _, err = link.Open(link.Spec{Name: "ib0", MAC: [6]byte{2, 0, 0, 0, 0, mac}, MTU: mtu})
		must(t, err)
	})
	t.Cleanup(func() { must(t, out.Close()) })
	got, err := out.SetOffloads(link.AllOffloads)
	must(t, err)
	out.udp = got&link.OffloadUSO != 0
	_, err = out.SetOffloads(0)
	must(t, err)
	must(t, out.SetCarrier(true))
	ns.Run("ip", "link", "set", "ib0", "up")
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeEach writes frames one by one.
func (p tap) writeEach(t testing.TB, frames [][]byte) {
	t.Helper()
	each := make([][][]byte, len(frames))
	for i := range frames {
		each[i] = frames[i : i+1]
	}
	if n, err := p.WriteVectors(each, make([]bool, len(frames))); n != len(frames) || err != nil {
		t.Fatalf("wrote %d of %d frames, %v", n, len(frames), err)
	}
}

// writeJoined joins batches of frames and writes them. It returns the number of writes.
func (p tap) writeJoined(t testing.TB, frames [][]byte) (writes int) {
	t.Helper()
	c := New(batch, p.udp)
	for part := range slices.Chunk(frames, batch) {
		out := c.Join(part, oneSender(part))
		if n, err := p.WriteVectors(out, make([]bool, batch)); n != len(out) || err != nil {
			t.Fatalf("wrote %d of %d frames, %v", n, len(out), err)
		}
		writes += len(out)
	}
	return writes
}

// A router cuts joined frames into exactly those that it forwards when they are written one
// by one.
func TestKernelForwardsTheSameFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	router, host := nstest.New(t), nstest.New(t)
	tap := openTAP(t, router, 1)
	nstest.Veth(t, router, "out", host, "in", 2044)
	// Segmentation and checksums in software, so that they are done before the capture.
	router.Run("ethtool", "-K", "out", "tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off", "sg", "off")
	for _, sysctl := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		router.Run("sysctl", "-qw", sysctl+"=1")
	}
	for _, sysctl := range []string{"net.ipv4.conf.all.rp_filter", "net.ipv4.conf.ib0.rp_filter"} {
		router.Run("sysctl", "-qw", sysctl+"=0")
	}
	router.Run("ip", "address", "add", "192.0.2.1/24", "dev", "out")
	router.AddIPv6("out", "2001:db8::1/64")
	router.Run("ip", "route", "add", host4, "dev", "out")
	router.Run("ip", "route", "add", host6, "dev", "out")
	router.Run("ip", "neigh", "add", host4, "lladdr", peerMAC, "dev", "out")
	router.Run("ip", "neigh", "add", host6, "lladdr", peerMAC, "dev", "out")
	seen := capture(t, host)

	var in [][]byte
	for _, s := range []segment{tcp4(), tcp6(), udp4(), udp6()} {
		for _, size := range []int{1, 17, 100, 1448} {
			s.payload, s.port = data(size), s.port+1
			run := train(s, 20)
			in = append(in, frames(append(run, run[19].following((size+1)/2))...)...)
		}
	}
	fixed := tcp4()
	fixed.port = 3000
	for _, s := range train(fixed, 9) {
		s.id = 0
		in = append(in, s.frame())
	}
	batch := rapid.Custom(randomBatch)
	for i := range 20 {
		in = append(in, batch.Example(i)...)
	}

	nstest.OnOneCPU(t)
	tap.writeEach(t, clone(in))
	one := seen(t, tap)
	writes := tap.writeJoined(t, clone(in))
	joined := seen(t, tap)
	t.Logf("%d frames, %d writes when joined; the router forwarded %d", len(in), writes, count(one))
	if tap.udp && writes > len(in)/2 || count(one) < len(in)/2 {
		t.Errorf("%d writes, %d frames forwarded of %d: too few are joined or forwarded to compare", writes, count(one), len(in))
	}
	for flow, want := range one {
		if got := joined[flow]; !reflect.DeepEqual(got, want) {
			t.Errorf("flow % x:\n got %x\nwant %x", flow, got, want)
		}
	}
	if len(one) != len(joined) {
		t.Errorf("%d flows, want %d", len(joined), len(one))
	}
}

func count(flows map[flow][]string) (n int) {
	for _, f := range flows {
		n += len(f)
	}
	return n
}

// randomBatch returns frames of a few flows, some of them unusual.
func randomBatch(t *rapid.T) (in [][]byte) {
	s := rapid.SampledFrom([]segment{tcp4(), tcp6(), udp4(), udp6()}).Draw(t, "flow")
	s.port = rapid.Uint16Range(5000, 60000).Draw(t, "port")
	for range batch {
		now := s
		mutate(t, &now)
		in = append(in, now.frame())
		s = s.following(len(s.payload))
	}
	return in
}

// capture returns a function that sends a last packet and returns those that arrived before it
// at the interface "in", by flow.
func capture(t *testing.T, ns *nstest.Namespace) func(*testing.T, tap) map[flow][]string {
	fd := packetSocket(t, ns, "in")
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	end := segment{udp: true, host: 77, port: 7, ttl: 64, payload: []byte("end")}.frame()
	last := flowOf(end)
	return func(t *testing.T, tap tap) map[flow][]string {
		tap.writeEach(t, [][]byte{end})
		out, buf := map[flow][]string{}, make([]byte, 1<<16)
		for {
			n, err := unix.Read(fd, buf[10:])
			if errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
				continue
			}
			if err != nil {
				t.Fatalf("the last packet did not arrive: %v", err)
			}
			f := flowOf(buf[:10+n])
			if f.addrs == "" || f.proto != join.TCP && f.proto != join.UDP && f.proto != 0 {
				continue // of the router itself
			}
			if f == last {
				return out
			}
			out[f] = append(out[f], string(plain(buf[10:10+n])))
		}
	}
}

// packetSocket returns a socket for all frames of an interface.
func packetSocket(t *testing.T, ns *nstest.Namespace, name string) (fd int) {
	t.Helper()
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
	ns.Do(func() {
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		must(t, err)
		dev, err := net.InterfaceByName(name)
		must(t, err)
		must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// Sockets receive the same from joined frames as from single ones.
func TestSocketsReceiveTheSame(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns := nstest.New(t)
	tap := openTAP(t, ns, 1)
	ns.Run("ip", "address", "add", host4+"/24", "dev", "ib0")
	ns.AddIPv6("ib0", host6+"/64")
	ns.Run("ip", "neigh", "add", peer4, "lladdr", peerMAC, "dev", "ib0")
	ns.Run("ip", "neigh", "add", peer6, "lladdr", peerMAC, "dev", "ib0")
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("UDP/ipv6=%t", ipv6), func(t *testing.T) { datagrams(t, ns, tap, ipv6) })
		t.Run(fmt.Sprintf("TCP/ipv6=%t", ipv6), func(t *testing.T) { stream(t, ns, tap, ipv6) })
	}
}

func hostAddr(ipv6 bool, port int) string {
	if ipv6 {
		return fmt.Sprintf("[%s]:%d", host6, port)
	}
	return fmt.Sprintf("%s:%d", host4, port)
}

func datagrams(t *testing.T, ns *nstest.Namespace, tap tap, ipv6 bool) {
	var conn net.PacketConn
	ns.Do(func() {
		var err error
		conn, err = net.ListenPacket("udp", hostAddr(ipv6, 53))
		must(t, err)
	})
	defer conn.Close()
	s := segment{ipv6: ipv6, udp: true, host: 1, port: 5353, ttl: 64}
	var in [][]byte
	var want []string
	for _, size := range []int{1, 1000, 1000, 1000, 300, 1000, 1400, 1400, 7, 7, 7, 0, 7, 1200, 1200} {
		s = s.following(size)
		in, want = append(in, s.frame()), append(want, string(s.payload))
	}
	receive := func() (got []string) {
		t.Helper()
		must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		buf := make([]byte, 1<<16)
		for range want {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				t.Fatalf("%d of %d datagrams: %v", len(got), len(want), err)
			}
			got = append(got, string(buf[:n]))
		}
		return got
	}
	tap.writeEach(t, clone(in))
	if got := receive(); !slices.Equal(got, want) {
		t.Errorf("one by one: %q, want %q", got, want)
	}
	if n := tap.writeJoined(t, clone(in)); tap.udp && n >= len(in) {
		t.Errorf("%d writes of %d datagrams", n, len(in))
	}
	if got := receive(); !slices.Equal(got, want) {
		t.Errorf("joined: %q, want %q", got, want)
	}
}

func stream(t *testing.T, ns *nstest.Namespace, tap tap, ipv6 bool) {
	var listener net.Listener
	ns.Do(func() {
		var err error
		listener, err = net.Listen("tcp", hostAddr(ipv6, 80))
		must(t, err)
	})
	defer listener.Close()
	for k, write := range []func([][]byte) int{
		func(in [][]byte) int { tap.writeEach(t, in); return len(in) },
		func(in [][]byte) int { return tap.writeJoined(t, in) },
	} {
		conn, s := connect(t, tap, listener, segment{ipv6: ipv6, host: 1, port: uint16(4000 + k), ttl: 64})
		var want []byte
		var in [][]byte
		for i := range 60 {
			s = s.following([]int{1448, 1448, 1448, 1448, 700}[i%5])
			for j := range s.payload {
				s.payload[j] = byte(i + j)
			}
			s.flags = 0
			if i%7 == 6 {
				s.flags = flagPSH
			}
			in, want = append(in, s.frame()), append(want, s.payload...)
		}
		s = s.following(0)
		s.flags = 1 // FIN
		in = append(in, s.frame())
		n := write(in)
		must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d writes: %d bytes, %v; want %d, the same", n, len(got), err, len(want))
		}
		t.Logf("%d segments, %d writes", len(in), n)
		conn.Close()
	}
}

// connect makes a connection to a listener in the namespace of a TAP, and returns the
// acknowledgement that ended its handshake.
func connect(t testing.TB, tap tap, listener net.Listener, s segment) (net.Conn, segment) {
	t.Helper()
	s.seq, s.window, s.flags, s.noACK = 0xfffff000, 1000, 2, true // SYN
	tap.writeEach(t, [][]byte{s.frame()})
	s.ack = synAck(t, tap, s) + 1
	s.seq, s.flags, s.noACK = s.seq+1, 0, false
	tap.writeEach(t, [][]byte{s.frame()})
	conn, err := listener.Accept()
	must(t, err)
	return conn, s
}

// synAck returns the sequence number of the host's answer to a SYN.
func synAck(t testing.TB, tap tap, syn segment) uint32 {
	t.Helper()
	transport := 44
	if syn.ipv6 {
		transport = 64
	}
	wake := time.AfterFunc(patience, tap.Wake)
	defer wake.Stop()
	bufs, sizes := [][]byte{make([]byte, 4096)}, []int{0}
	for {
		n, err := tap.ReadBatch(bufs, sizes)
		if n == 0 || err != nil {
			t.Fatalf("no answer to SYN: %v", err)
		}
		f := bufs[0][:sizes[0]]
		if len(f) >= transport+20 && flowOf(f).proto == join.TCP && f[transport+13] == 0x12 && binary.BigEndian.Uint16(f[transport+2:]) == syn.port {
			return binary.BigEndian.Uint32(f[transport+4:])
		}
	}
}

// BenchmarkHost writes batches of TCP segments to a TAP: one by one, joined, and joined after a
// device has verified their checksums. The time is that of the writes, in which the host's TCP
// runs, and of joining.
func BenchmarkHost(b *testing.B) {
	for _, c := range []struct {
		name           string
		join, verified bool
	}{{"single", false, false}, {"joined", true, false}, {"verified", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			ns := nstest.New(b)
			tap := openTAP(b, ns, 1)
			ns.Run("ip", "address", "add", host4+"/24", "dev", "ib0")
			ns.Run("ip", "neigh", "add", peer4, "lladdr", peerMAC, "dev", "ib0")
			var listener net.Listener
			ns.Do(func() {
				var err error
				listener, err = net.Listen("tcp", hostAddr(false, 80))
				must(b, err)
			})
			defer listener.Close()
			conn, s := connect(b, tap, listener, segment{host: 1, port: 4000, ttl: 64})
			defer conn.Close()
			s.verifiedByHW = c.verified
			const size = mtu - 40
			buf := make([]byte, batch*size)
			acks, sizes := make([][]byte, batch), make([]int, batch)
			for i := range acks {
				acks[i] = make([]byte, 4096)
			}
			var spent []time.Duration
			for b.Loop() {
				var in [][]byte
				for range batch / 2 { // as much as the receive window takes
					s = s.following(size)
					in = append(in, s.frame())
				}
				begin := time.Now()
				if c.join {
					tap.writeJoined(b, in)
				} else {
					tap.writeEach(b, in)
				}
				spent = append(spent, time.Since(begin))
				if _, err := io.ReadFull(conn, buf[:len(in)*size]); err != nil {
					b.Fatal(err)
				}
				if _, err := tap.ReadBatch(acks, sizes); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(spent)
			b.ReportMetric(float64(spent[len(spent)/2].Nanoseconds())/(batch/2), "ns/segment-median")
			b.ReportMetric(float64(spent[0].Nanoseconds())/(batch/2), "ns/segment-best")
		})
	}
}
