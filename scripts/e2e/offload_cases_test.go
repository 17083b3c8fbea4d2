package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// offloadCase is traffic between two hosts.
type offloadCase struct {
	name   string
	run    func(*exchange)
	large  bool // the sender's host sends large frames
	joined bool // the receiver's host receives large frames
	// shows, if set, reports whether a packet has what the case is about: some packet on the
	// wire must. layer4 is what follows the IP header.
	shows func(ip, layer4 []byte) bool
}

var offloadCases = []offloadCase{
	{"TCP", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.bulk}) }, true, true, nil},
	{"TCP over IPv6", func(x *exchange) { x.stream(x.to.ip6(), tcpCase{write: x.bulk}) }, true, true, nil},
	{"tiny segments", (*exchange).tiny, true, true, func(ip, tcp []byte) bool { return len(tcp) == 32+36 }},
	{"ECN", (*exchange).ecn, true, true, flagged(tcpCWR)},
	{"urgent data", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.urgent, server: inline}) }, true, true, flagged(tcpURG)},
	{"small writes, PSH", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.writes}) }, false, false, flagged(tcpPSH)},
	{"zero window", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.bulk, listener: narrow, read: slowly}) }, true, false, func(_, tcp []byte) bool {
		return tcp[tcpFlagsAt]&tcpRST == 0 && binary.BigEndian.Uint16(tcp[tcpWindowAt:]) == 0
	}},
	{"IPv4 options", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.bulk, client: options4}) }, true, false, func(ip, _ []byte) bool { return ip[0] == 0x46 }},
	{"IPv6 destination options", func(x *exchange) { x.stream(x.to.ip6(), tcpCase{write: x.bulk, client: options6}) }, false, false, func(ip, _ []byte) bool { return ip[6] == unix.IPPROTO_DSTOPTS }},
	{"IPv6 segment routing", func(x *exchange) {
		x.routed(func(via func(fd int) error) { x.stream(x.to.ip6(), tcpCase{write: x.bulk, client: via}) })
	}, true, false, func(ip, _ []byte) bool { return ip[6] == unix.IPPROTO_ROUTING }},
	{"UDP segmentation, IPv6 segment routing", func(x *exchange) {
		x.routed(func(via func(fd int) error) { x.datagrams(x.to.ip6(), 1200, via) })
	}, false, false, func(ip, _ []byte) bool { return ip[6] == unix.IPPROTO_ROUTING }},
	{"TTL and TOS change", func(x *exchange) { x.stream(x.to.ip4(), tcpCase{write: x.changing}) }, true, true, func(ip, _ []byte) bool { return ip[1]>>2 == 4 && ip[8] == 66 }},
	{"hop limit and class change", func(x *exchange) { x.stream(x.to.ip6(), tcpCase{write: x.changing}) }, true, true, func(ip, _ []byte) bool { return ip[0]&15<<4|ip[1]>>4 == 16 && ip[7] == 66 }},
	{"UDP segmentation", func(x *exchange) { x.datagrams(x.to.ip4(), 1200, nil) }, true, true, nil},
	{"UDP segmentation over IPv6", func(x *exchange) { x.datagrams(x.to.ip6(), 1200, nil) }, true, true, nil},
	{"UDP fragments", func(x *exchange) { x.datagrams(x.to.ip4(), 0, nil) }, false, false, func(ip, _ []byte) bool { return ip[6]&0x20 != 0 }},
	{"VXLAN", func(x *exchange) { x.vxlan("noudpcsum") }, false, false, func(ip, udp []byte) bool {
		return ip[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(udp[udpSumAt:]) == 0
	}},
	{"VXLAN with checksums", func(x *exchange) { x.vxlan("udpcsum") }, false, true, func(ip, udp []byte) bool {
		return ip[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(udp[udpSumAt:]) != 0
	}},
	{"GRE", func(x *exchange) { x.encapsulated(unix.IPPROTO_GRE, []byte{0, 0, 0x08, 0}) }, false, false, func(ip, _ []byte) bool { return ip[9] == unix.IPPROTO_GRE }},
	{"IP in IP", func(x *exchange) { x.encapsulated(unix.IPPROTO_IPIP, nil) }, false, false, func(ip, _ []byte) bool { return ip[9] == unix.IPPROTO_IPIP }},
	{"VLAN tags", (*exchange).vlan, false, false, nil},
}

const (
	// offloadBytes is the amount of data that a TCP connection carries.
	offloadBytes = 4 << 20
	// offloadLimit is ten times as long as that takes on a busy machine.
	offloadLimit = time.Minute
)

// flagged reports whether a TCP header has a flag.
func flagged(flag byte) func(ip, tcp []byte) bool {
	return func(_, tcp []byte) bool { return tcp[tcpFlagsAt]&flag != 0 }
}

// exchange is the traffic of a case.
type exchange struct {
	t        *testing.T
	from, to *host
	data     []byte // sent so far
	rnd      *rand.Rand
}

// tcpCase is how a connection is set up and used; nil means as usual.
type tcpCase struct {
	write                    func(*net.TCPConn) error
	read                     func(*net.TCPConn, io.Writer) error
	client, server, listener func(fd int) error
}

// stream writes to a connection and checks that the other end reads the same bytes.
func (x *exchange) stream(to string, c tcpCase) {
	x.t.Helper()
	x.rnd = rand.New(rand.NewPCG(relaySeed, 0))
	listener, err := x.to.listenTCP(to)
	if err != nil {
		x.t.Fatal(err)
	}
	defer listener.Close()
	x.set(listener.(*net.TCPListener), c.listener)
	written := make(chan error, 1)
	go func() { written <- x.write(listener.Addr().String(), c) }()
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(repairLimit))
	conn, err := listener.Accept()
	if err != nil {
		x.t.Fatalf("accept: %v", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(offloadLimit))
	x.set(conn.(*net.TCPConn), c.server)
	read := c.read
	if read == nil {
		read = func(conn *net.TCPConn, w io.Writer) error { _, err := io.Copy(w, conn); return err }
	}
	var got bytes.Buffer
	if err := read(conn.(*net.TCPConn), &got); err != nil {
		x.t.Errorf("read: %v", err)
	}
	if err := <-written; err != nil {
		x.t.Errorf("write: %v", err)
	}
	if !bytes.Equal(got.Bytes(), x.data) {
		x.t.Errorf("read %d bytes that are not the %d written ones", got.Len(), len(x.data))
	}
}

func (x *exchange) write(to string, c tcpCase) error {
	var conn net.Conn
	var err error
	x.from.Do(func() { conn, err = (&net.Dialer{Timeout: repairLimit}).Dial("tcp", to) })
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(offloadLimit))
	x.set(conn.(*net.TCPConn), c.client)
	return c.write(conn.(*net.TCPConn))
}

// set calls f, if it is not nil, with the descriptor of a socket.
func (x *exchange) set(socket syscall.Conn, f func(fd int) error) {
	raw, err := socket.SyscallConn()
	if err != nil || f == nil {
		return
	}
	var refused error
	if err := raw.Control(func(fd uintptr) { refused = f(int(fd)) }); err != nil || refused != nil {
		x.t.Errorf("set an option of a socket: %v, %v", err, refused)
	}
}

// next returns the next n bytes of the stream.
func (x *exchange) next(n int) []byte {
	for range n {
		x.data = append(x.data, byte(x.rnd.Uint32()))
	}
	return x.data[len(x.data)-n:]
}

func (x *exchange) bulk(conn *net.TCPConn) error {
	_, err := conn.Write(x.next(offloadBytes))
	return err
}

// writes writes many pieces, each of which is pushed.
func (x *exchange) writes(conn *net.TCPConn) error {
	for range 300 {
		if _, err := conn.Write(x.next(1 + x.rnd.IntN(4000))); err != nil {
			return err
		}
		if x.rnd.IntN(4) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// urgent marks bytes in the middle of large writes as urgent. The pointer is behind the byte, so it
// is in the next segment at times.
func (x *exchange) urgent(conn *net.TCPConn) error {
	for range 40 {
		if _, err := conn.Write(x.next(50000 + x.rnd.IntN(50000))); err != nil {
			return err
		}
		mark := x.next(1)
		x.set(conn, func(fd int) error {
			for {
				if err := unix.Sendto(fd, mark, unix.MSG_OOB, nil); !errors.Is(err, unix.EAGAIN) {
					return err
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return nil
}

func inline(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) }

// changing changes header fields that all segments of a frame share. A segment gets the values of
// the time when it is sent, so each write waits until the previous one was sent.
func (x *exchange) changing(conn *net.TCPConn) error {
	v6 := conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil
	for i := range 100 {
		x.set(conn, func(fd int) error {
			if v6 {
				return errors.Join(unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 64+i%3),
					unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, i%5<<2))
			}
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, 64+i%3),
				unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, i%5<<2))
		})
		if _, err := conn.Write(x.next(offloadBytes / 100)); err != nil {
			return err
		}
		x.set(conn, sent)
	}
	return nil
}

// sent waits until the kernel has sent all that was written to a connection.
func sent(fd int) error {
	for end := time.Now().Add(offloadLimit); ; time.Sleep(100 * time.Microsecond) {
		switch unsent, err := unix.IoctlGetInt(fd, unix.SIOCOUTQNSD); {
		case err != nil || unsent == 0:
			return err
		case time.Now().After(end):
			return fmt.Errorf("%d bytes unsent after %v", unsent, offloadLimit)
		}
	}
}

func narrow(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8192) }

// slowly lets the window close several times before it reads on.
func slowly(conn *net.TCPConn, to io.Writer) error {
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		if _, err := io.CopyN(to, conn, 20000); err != nil {
			return err
		}
	}
	_, err := io.Copy(to, conn)
	return err
}

// options4 adds an option that has no effect to each packet: a router alert (RFC 2113).
func options4(fd int) error {
	return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, "\x94\x04\x00\x00")
}

// options6 adds a header of destination options, with padding only.
func options6(fd int) error {
	return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_DSTOPTS, "\x00\x00\x01\x04\x00\x00\x00\x00")
}

// routed runs traffic by way of another address of the receiver, with an option for the sending
// socket: a segment routing header (RFC 8754). Any user may set one, and the checksum of TCP or
// UDP is that for the final destination.
func (x *exchange) routed(run func(via func(fd int) error)) {
	x.to.Run("sysctl", "-q", "-w", "net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf."+ifName+".seg6_enabled=1")
	for i, h := range []*host{x.from, x.to} {
		addr := fmt.Sprintf("fd45::%d/64", i+1)
		h.AddIPv6(ifName, addr)
		defer h.Run("ip", "addr", "del", addr, "dev", ifName)
	}
	// The header has 40 bytes and type 4. One segment is left, and the last one is number 1.
	header := []byte{0, 4, 4, 1, 1, 0, 0, 0}
	header = append(header, make([]byte, net.IPv6len)...) // the kernel writes the final destination
	header = append(header, net.ParseIP("fd45::2")...)
	run(func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_RTHDR, string(header)) })
}

// tiny sends the shortest segments that Linux sends in bulk (the sysctl tcp_min_snd_mss, less the
// option for timestamps), of which a frame has up to 1,820.
func (x *exchange) tiny() {
	x.to.Run("ip", "route", "add", x.from.ip4(), "dev", ifName, "advmss", "48")
	defer x.to.Run("ip", "route", "del", x.from.ip4(), "dev", ifName)
	x.stream(x.to.ip4(), tcpCase{write: func(conn *net.TCPConn) error {
		_, err := conn.Write(x.next(offloadBytes / 16))
		return err
	}})
}

// ecn uses ECN, while the receiver marks some packets as if a router had been congested. So the
// sender gets ECE and sends CWR.
func (x *exchange) ecn() {
	for _, h := range []*host{x.from, x.to} {
		h.Run("sysctl", "-q", "-w", "net.ipv4.tcp_ecn=1")
		defer h.Run("sysctl", "-q", "-w", "net.ipv4.tcp_ecn=2")
	}
	x.to.Run("nft", "table ip congested { chain in { type filter hook prerouting priority -300; iifname "+ifName+" ip ecn ect0 numgen inc mod 20 == 0 ip ecn set ce; }; }")
	defer x.to.Run("nft", "delete table ip congested")
	x.stream(x.to.ip4(), tcpCase{write: x.bulk})
}

// datagrams sends UDP datagrams: by segmentation, if size is not 0, else in fragments. option, if
// not nil, is set on the sending socket.
func (x *exchange) datagrams(to string, size int, option func(fd int) error) {
	x.t.Helper()
	x.rnd = rand.New(rand.NewPCG(relaySeed, 0))
	var in *net.UDPConn
	var out net.Conn
	var err, err2 error
	x.to.Do(func() { in, err = listenNumbered(to, numberedPort) })
	x.from.Do(func() { out, err2 = net.Dial("udp", net.JoinHostPort(to, strconv.Itoa(numberedPort))) })
	if err != nil || err2 != nil {
		x.t.Fatal(err, err2)
	}
	defer in.Close()
	defer out.Close()
	x.set(out.(*net.UDPConn), option)
	if size > 0 {
		x.set(out.(*net.UDPConn), func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, size) })
	}
	const each = 30
	b := make([]byte, 1<<16)
	for range 50 {
		sent := x.next(each*1200 - x.rnd.IntN(1200))
		if _, err := out.Write(sent); err != nil {
			x.t.Fatalf("send: %v", err)
		}
		var got []byte
		for len(got) < len(sent) {
			_ = in.SetReadDeadline(time.Now().Add(repairLimit))
			n, err := in.Read(b)
			if err != nil {
				x.t.Fatalf("receive, after %d of %d bytes: %v", len(got), len(sent), err)
			}
			if want := min(size, len(sent)-len(got)); size > 0 && n != want {
				x.t.Errorf("received %d bytes, want %d", n, want)
			}
			got = append(got, b[:n]...)
		}
		if !bytes.Equal(got, sent) {
			x.t.Errorf("%d bytes differ from those sent", len(got))
		}
	}
}

// vxlan carries a TCP connection in a tunnel over ib0.
func (x *exchange) vxlan(sums string) {
	for i, h := range []*host{x.from, x.to} {
		other := []*host{x.to, x.from}[i]
		h.Run("ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "local", h.ip4(), "remote", other.ip4(), "dstport", "4789", sums)
		defer h.Run("ip", "link", "del", "vx0")
		h.Run("ip", "addr", "add", fmt.Sprintf("10.45.0.%d/24", h.number+1), "dev", "vx0")
		h.Run("ip", "link", "set", "vx0", "up")
	}
	x.stream(fmt.Sprintf("10.45.0.%d", x.to.number+1), tcpCase{write: x.bulk})
}

// encapsulated sends IP packets in another protocol, through raw sockets: this kernel has no
// devices for GRE and IP in IP.
func (x *exchange) encapsulated(protocol int, header []byte) {
	x.rnd = rand.New(rand.NewPCG(relaySeed, 0))
	var in, out *net.IPConn
	var err, err2 error
	x.to.Do(func() { in, err = net.ListenIP(fmt.Sprint("ip4:", protocol), &net.IPAddr{IP: net.ParseIP(x.to.ip4())}) })
	x.from.Do(func() {
		out, err2 = net.DialIP(fmt.Sprint("ip4:", protocol), nil, &net.IPAddr{IP: net.ParseIP(x.to.ip4())})
	})
	if err != nil || err2 != nil {
		x.t.Fatal(err, err2)
	}
	defer in.Close()
	defer out.Close()
	got := make([]byte, 1<<16)
	for i := range 200 {
		packet := ipv4UDP(testPaths[0], x.next(1200))
		if i%10 == 0 {
			packet = ipv4UDP(testPaths[0], x.next(5000)) // in fragments
		}
		packet = append(bytes.Clone(header), packet...)
		if _, err := out.Write(packet); err != nil {
			x.t.Fatalf("send: %v", err)
		}
		_ = in.SetReadDeadline(time.Now().Add(repairLimit))
		n, _, err := in.ReadFrom(got)
		if err != nil || !bytes.Equal(got[:n], packet) {
			x.t.Fatalf("packet %d: received %d bytes, want the %d sent; %v", i, n, len(packet), err)
		}
	}
}

// vlan sends frames with a VLAN tag, half of them large. IPoIB does not carry them, so the
// eBPF filter of the TAP drops them.
func (x *exchange) vlan() {
	x.rnd = rand.New(rand.NewPCG(relaySeed, 0))
	port := newPacketSocket(x.from)
	if err := unix.SetsockoptInt(port.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		x.t.Fatal(err)
	}
	const tagLen, tcpLen, size = 4, 20, 1000
	src, dst := mac(x.from.iface().HostMAC), mac(x.from.iface().HostMAC)
	dst[5] ^= 1
	const each = 20
	x.from.expect("VLAN tags", map[string]uint64{"tap_drop_filter_vlan": 2 * each}, func() {
		for i := range 2 * each {
			packet := ipv4(x.from.ip4(), x.to.ip4())
			var header [virtioLen]byte
			body := x.next(size)
			if i%2 == 1 {
				body = x.next(20 * size)
				header = [virtioLen]byte{virtioNeedsCsum, unix.VIRTIO_NET_HDR_GSO_TCPV4, etherLen + tagLen + ip4Len + tcpLen, 0, size & 0xff, size >> 8, etherLen + tagLen + ip4Len, 0, tcpSumAt}
			}
			packet = append(append(packet[:ip4Len], make([]byte, tcpLen)...), body...)
			packet[9], packet[ip4Len+tcpOffsetAt] = unix.IPPROTO_TCP, tcpLen/4<<4
			binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
			frame := ether(dst, src, 0x8100, append([]byte{0, 7, 0x08, 0}, packet...))
			port.send(append(header[:], frame...))
		}
	})
}
