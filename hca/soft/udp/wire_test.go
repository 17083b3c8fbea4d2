package udp_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// packetSocket opens an AF_PACKET socket (SOCK_DGRAM: IP packets) on a
// namespace's netdev, for one protocol of linux/if_ether.h.
func packetSocket(t *testing.T, ns *nstest.Namespace, index int, protocol uint16) (fd int) {
	t.Helper()
	ns.Do(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap(protocol), Ifindex: index}); err != nil {
			t.Fatal(err)
		}
		limit := unix.NsecToTimeval(int64(transporttest.Patience))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			t.Fatal(err)
		}
	})
	return fd
}

func swap(v uint16) uint16 { return v<<8 | v>>8 }

// captureUDP returns the next IP packet that carries UDP to port 4791.
func captureUDP(t *testing.T, fd, ipLen int) []byte {
	t.Helper()
	buf := make([]byte, 2048)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
			continue
		}
		if err != nil {
			t.Fatalf("capture: %v", err)
		}
		if n >= ipLen+8 && binary.BigEndian.Uint16(buf[ipLen+2:]) == udp.Port {
			return buf[:n]
		}
	}
}

// Every field of the sent packets has the right value on the wire.
func TestOnTheWire(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
	fd4 := packetSocket(t, nsB, b.State().Index, unix.ETH_P_IP)
	fd6 := packetSocket(t, nsB, b.State().Index, unix.ETH_P_IPV6)
	payload := []byte("0123456789")
	// Several packets, because an identification that is a counter may start at zero.
	for range 5 {
		sendOne(t, a, transport.Packet{Src: a.IPv4, Dst: b.IPv4, TOS: 0x68, TTL: 9, Data: payload})
		checkIPv4(t, captureUDP(t, fd4, 20), a)
	}
	sendOne(t, a, transport.Packet{Src: a.IPv6, Dst: b.IPv6, TOS: 0x68, TTL: 9, Data: payload})
	checkIPv6(t, captureUDP(t, fd6, 40), a)
}

func sendOne(t *testing.T, h transporttest.Host, pkt transport.Packet) {
	t.Helper()
	if n, err := h.Send([]transport.Packet{pkt}); n != 1 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
}

func checkIPv4(t *testing.T, p []byte, a transporttest.Host) {
	t.Helper()
	be := binary.BigEndian
	if p[0] != 0x45 || p[1] != 0x68 || p[8] != 9 || len(p) != 20+8+10 {
		t.Errorf("version %#x, TOS %#x, TTL %d, %d bytes, want 0x45, 0x68, 9, 38", p[0], p[1], p[8], len(p))
	}
	if id, frag := be.Uint16(p[4:]), be.Uint16(p[6:]); id != 0 || frag != 0x4000 {
		t.Errorf("identification %d, flags and offset %#x, want 0, 0x4000 (DF)", id, frag)
	}
	if port := be.Uint16(p[20:]); port != a.SrcPort() {
		t.Errorf("source port %d, want %d", port, a.SrcPort())
	}
}

func checkIPv6(t *testing.T, p []byte, a transporttest.Host) {
	t.Helper()
	be := binary.BigEndian
	if class := be.Uint32(p) >> 20 & 0xff; class != 0x68 || p[6] != unix.IPPROTO_UDP || p[7] != 9 {
		t.Errorf("traffic class %#x, next header %d, hop limit %d, want 0x68, 17, 9", class, p[6], p[7])
	}
	if port, sum := be.Uint16(p[40:]), be.Uint16(p[46:]); port != a.SrcPort() || sum == 0 {
		t.Errorf("source port %d, checksum %#x, want %d and a non-zero checksum", port, sum, a.SrcPort())
	}
}

// A packet without a TTL gets the system's default for unicast, and MulticastTTL for
// multicast.
func TestDefaultTTL(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, 1500)
	for _, tt := range []struct {
		pkt transport.Packet
		ttl uint8
	}{
		{transport.Packet{Src: a.IPv4, Dst: b.IPv4}, 64},
		{transport.Packet{Src: a.IPv6, Dst: b.IPv6}, 64},
		{transport.Packet{Src: a.IPv4, Dst: group4}, udp.MulticastTTL},
		{transport.Packet{Src: a.IPv6, Dst: group6}, udp.MulticastTTL},
	} {
		if tt.pkt.Dst.IsMulticast() {
			if err := b.Join(tt.pkt.Dst); err != nil {
				t.Fatal(err)
			}
		}
		tt.pkt.Data = []byte("x")
		sendOne(t, a, tt.pkt)
		if got := recvOne(t, b); got.TTL != tt.ttl || got.TOS != 0 {
			t.Errorf("to %v: TTL %d, TOS %d, want %d, 0", tt.pkt.Dst, got.TTL, got.TOS, tt.ttl)
		}
	}
}

// recvOne receives a datagram. Its data is valid until the next call.
func recvOne(t *testing.T, h transporttest.Host) transport.Packet {
	t.Helper()
	defer time.AfterFunc(transporttest.Patience, func() { _ = h.Close() }).Stop()
	pkts := make([]transport.Packet, 1)
	if n, err := h.Recv(pkts); n != 1 || err != nil {
		t.Fatalf("Recv = %d, %v", n, err)
	}
	return pkts[0]
}

// An IPv6 datagram without a UDP checksum is received, because the Linux Soft-RoCE
// driver sends them.
func TestNoChecksum6(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
	// The kernel installs the route of a new IPv6 address shortly after it lists the
	// address. An ordinary datagram waits for neighbour discovery and thus for the
	// route; a raw one sent now would be lost.
	sendOne(t, a, transport.Packet{Src: a.IPv6, Dst: b.IPv6, Data: []byte("first")})
	recvOne(t, b)
	p := make([]byte, 40, 60)
	p[0], p[5], p[6], p[7] = 0x60, 8+4, unix.IPPROTO_UDP, 64
	src, dst := a.IPv6.As16(), b.IPv6.As16()
	copy(p[8:], src[:])
	copy(p[24:], dst[:])
	p = append(p, 0xc0, 0x01, udp.Port>>8, udp.Port&0xff, 0, 8+4, 0, 0, 'r', 'x', 'e', '!')
	fd := packetSocket(t, nsA, a.State().Index, unix.ETH_P_IPV6)
	mac := b.State().MAC
	to := &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_IPV6), Ifindex: a.State().Index, Halen: 6}
	copy(to.Addr[:], mac[:])
	if err := unix.Sendto(fd, p, 0, to); err != nil {
		t.Fatal(err)
	}
	got := recvOne(t, b)
	if string(got.Data) != "rxe!" || got.SrcPort != 0xc001 || got.Src != a.IPv6 || got.Dst != b.IPv6 {
		t.Errorf("received %q from %v port %#x", got.Data, got.Src, got.SrcPort)
	}
}
