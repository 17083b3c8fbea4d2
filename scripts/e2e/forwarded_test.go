package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// A host that forwards the large frames of a guest passes each to the daemon whole, whatever the
// number of its segments: a kernel that cut them would flood the TAP's queue with single packets.
func TestForwardedFramesStayWhole(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	guest := nstest.New(t)
	nstest.Veth(t, a.Namespace, "guest0", guest, nstest.Dev, 1500)
	const addr = "10.99.0.2"
	a.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	a.Run("ip", "addr", "add", "10.99.0.1/24", "dev", "guest0")
	guest.Run("ip", "addr", "add", addr+"/24", "dev", nstest.Dev)
	guest.Run("ip", "route", "add", "default", "via", "10.99.0.1")
	b.Run("ip", "route", "add", "10.99.0.0/24", "via", a.ip4())
	guest.Run("ping", "-q", "-c", "1", "-W", "5", b.ip4())

	port := newPacketSocketOn(&host{Namespace: guest, tb: t}, nstest.Dev)
	if err := unix.SetsockoptInt(port.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	from, to := hardwareAddr(t, guest, nstest.Dev), hardwareAddr(t, a.Namespace, "guest0")
	for _, n := range []int{2, 31, 32, 45, 63, 64, 65, 128, 129, 1000, 1820, hca.MaxLSOSegments} {
		size := min(1400, (1<<16-1-etherLen-ip4Len-20)/n)
		frame := ether(to, from, etherIPv4, largeTCP(addr, b.ip4(), n*size-size/2))
		header := [virtioLen]byte{virtioNeedsCsum, unix.VIRTIO_NET_HDR_GSO_TCPV4}
		binary.NativeEndian.PutUint16(header[2:], etherLen+ip4Len+20)
		binary.NativeEndian.PutUint16(header[4:], uint16(size))
		binary.NativeEndian.PutUint16(header[6:], etherLen+ip4Len)
		binary.NativeEndian.PutUint16(header[8:], tcpSumAt)
		before, there := a.book(), b.book()
		port.send(append(header[:], frame...))
		eventually(t, countLimit, fmt.Sprintf("%d segments at the receiver", n), func() bool {
			return b.book().since(there).of("rx_received") >= uint64(n)
		})
		now := a.book().since(before)
		if large, segments := now.of("tx_large"), now.of("tx_segments"); large != 1 || segments != uint64(n) || now.all("tx_drop_") != 0 {
			t.Errorf("%d segments: %d large frames, %d segments, want 1 and %d; %d dropped", n, large, segments, n, now.all("tx_drop_"))
		}
	}
}

// hardwareAddr returns the MAC of an interface of a namespace.
func hardwareAddr(tb testing.TB, ns *nstest.Namespace, name string) (m ipoib.MAC) {
	tb.Helper()
	ns.Do(func() {
		dev, err := net.InterfaceByName(name)
		if err != nil {
			tb.Fatal(err)
		}
		m = ipoib.MAC(dev.HardwareAddr)
	})
	return m
}

// largeTCP returns an IPv4 packet of TCP with a payload of n bytes. Its TCP checksum is that of the
// pseudo-header.
func largeTCP(src, dst string, n int) []byte {
	ip := append(ipv4(src, dst)[:ip4Len], make([]byte, 20+n)...)
	tcp := ip[ip4Len:]
	binary.BigEndian.PutUint32(tcp, 40000<<16|9) // ports
	tcp[tcpOffsetAt], tcp[tcpFlagsAt] = 5<<4, 0x10
	ip[9] = unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[ip4SumAt:], 0)
	binary.BigEndian.PutUint16(ip[ip4SumAt:], ^fold(sum16(ip[:ip4Len])))
	binary.BigEndian.PutUint16(tcp[tcpSumAt:], fold(sum16(ip[12:ip4Len])+unix.IPPROTO_TCP+uint32(len(tcp))))
	return ip
}
