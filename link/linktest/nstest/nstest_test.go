package nstest_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

func TestEnterGivesAnEmptyNetwork(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	devices, err := net.Interfaces()
	if err != nil || len(devices) != 1 || devices[0].Flags&net.FlagUp == 0 {
		t.Fatalf("interfaces = %v, %v; want lo alone, up", devices, err)
	}
	sys, err := os.ReadDir("/sys/class/net")
	if err != nil || len(sys) != 1 || sys[0].Name() != "lo" {
		t.Errorf("/sys/class/net = %v, %v; want lo alone", sys, err)
	}
}

func TestEnterInSubtest(t *testing.T) {
	for _, name := range []string{"plain", "with space and (regexp) [chars]+"} {
		t.Run(name, func(t *testing.T) {
			if nstest.Enter(t) {
				return
			}
			if os.Geteuid() != 0 {
				t.Error("not root in the namespace")
			}
		})
	}
}

func TestPair(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	a.Run("ping", "-c1", "-W2", nstest.IPv4(1))
	b.Run("ping", "-c1", "-W2", nstest.IPv6(0))
}

func TestSwitch(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := nstest.Switch(t, 3, 9000)
	for i, h := range hosts {
		h.Run("ping", "-c1", "-W2", "-M", "do", "-s8972", nstest.IPv4((i+1)%3))
	}
}

// A frame that goes into a TAP's queue is broadcast to the hosts of its segment.
func TestSegmentTap(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	segment := nstest.NewSegment(t, 4200)
	host, tap := segment.Host(0), segment.Tap()
	defer tap.Close()
	const request = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + // virtio header
		"\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x07\x08\x06" + // Ethernet, ARP
		"\x00\x01\x08\x00\x06\x04\x00\x01" +
		"\x02\x00\x00\x00\x00\x07\xc0\x00\x02\xc8" + // 192.0.2.200 asks
		"\x00\x00\x00\x00\x00\x00\xc0\x00\x02\x01" // for 192.0.2.1
	if _, err := tap.WriteString(request); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 10+4200+14)
	for n := 0; n < 10+14 || string(frame[22:24]) != "\x08\x06" || frame[31] != 2; {
		var err error
		if n, err = tap.Read(frame); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(frame[38:42]); got != "\xc0\x00\x02\x01" {
		t.Errorf("the reply is from % x, want 192.0.2.1", got)
	}
	if out := host.Run("ip", "-o", "link", "show", nstest.Dev); !strings.Contains(out, "mtu 4200") {
		t.Errorf("the host's MTU is not the segment's: %s", out)
	}
}

// The first neighbour solicitation for the address of a new host is answered. The next one would
// follow after a second. By then, the kernel has sent another one to detect duplicates of the
// link-local address.
func TestIPv6IsUsableAtOnce(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for range 50 {
		a, b := nstest.Pair(t, 1500)
		a.Do(func() {
			c, err := net.Dial("udp", net.JoinHostPort(nstest.IPv6(1), "9"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%v, want an ICMP error of the other host", err)
			}
		})
		for i, ns := range []*nstest.Namespace{a, b} {
			out := ns.Run("cat", "/proc/net/dev_snmp6/"+nstest.Dev)
			n := regexp.MustCompile(`Icmp6OutNeighborSolicits\s+(\d+)`).FindStringSubmatch(out)
			if n == nil || n[1] > "2" {
				t.Errorf("host %d sent %q neighbour solicitations, want 2 at most", i, n)
			}
		}
	}
}

// The first datagram to an added address arrives.
func TestAddedIPv6ReceivesAtOnce(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	const port = "7"
	var dev *net.Interface
	var in net.PacketConn
	var err, err2 error
	b.Do(func() {
		dev, err = net.InterfaceByName(nstest.Dev)
		in, err2 = net.ListenPacket("udp6", ":"+port)
	})
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	defer in.Close()
	for i := range 100 {
		addr := fmt.Sprintf("2001:db8::2:%x", i)
		a.Run("ip", "neigh", "add", addr, "lladdr", dev.HardwareAddr.String(), "dev", nstest.Dev)
		var out net.Conn
		a.Do(func() { out, err = net.Dial("udp6", net.JoinHostPort(addr, port)) })
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		b.AddIPv6(nstest.Dev, addr+"/64")
		if _, err := out.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		_ = in.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, _, err := in.ReadFrom(make([]byte, 1)); err != nil {
			t.Fatalf("datagram to %s: %v", addr, err)
		}
	}
}
