package bpf_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	ip4 "golang.org/x/net/ipv4"
	ip6 "golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// attachedHosts returns two hosts in namespaces of their own, between whose TAPs the attached programs carry everything but what
// is left to a daemon, such as reports of multicast groups. That is lost, and holds no flow back.
func attachedHosts(t *testing.T, addrs [2]string) (hosts [2]*fastHost, spaces [2]*nstest.Namespace) {
	t.Helper()
	spaces[0], spaces[1] = nstest.Pair(t, 1500)
	for i, ns := range spaces {
		tap := ns.Tap("ib0") // nothing reads it
		t.Cleanup(func() { tap.Close() })
		h := &fastHost{GateSpec: bpf.GateSpec{
			MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, Addr: netip.MustParseAddr(addrs[i]), Num: 0x100 + uint32(i),
			Ports: []uint16{0xc000},
		}, GateKeys: keys}
		ns.Do(func() { setUp(t, h, inner4[i], net.HardwareAddr{2, 0, 0, 0, 0, byte(1 - i)}, inner4[1-i], inner6[1-i]) })
		ns.AddIPv6("ib0", inner6[i].String()+"/64")
		ns.Do(func() {
			h.load(t)
			must(t, kernel.AttachProgram(h.Netdev, kernel.Egress, h.path.AtNetdev))
			must(t, kernel.AttachProgram(h.Underlay, kernel.Ingress, h.path.AtUnderlay))
		})
		hosts[i] = h
	}
	for i, h := range hosts {
		_, err := dial(spaces[i], netip.AddrPortFrom(netip.MustParseAddr(addrs[1-i]), 9).String()) // resolves the next hop
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("the hosts do not reach each other: %v", err)
		}
		must(t, h.gate.AddPeer(hosts[1-i].asPeer()))
		h.open()
	}
	var passing sync.WaitGroup
	passing.Go(func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			for _, h := range hosts {
				h.gate.PassAll()
			}
		}
	})
	t.Cleanup(passing.Wait) // before the maps are unmapped
	return hosts, spaces
}

// setUp gives the interface ib0 the MAC of a host and an address, and a neighbour with several addresses. It sets the indexes
// of the host's interfaces.
func setUp(t *testing.T, h *fastHost, addr netip.Addr, neighbour net.HardwareAddr, neighbours ...netip.Addr) {
	t.Helper()
	ib0, err := netlink.LinkByName("ib0")
	must(t, err)
	underlay, err := netlink.LinkByName(nstest.Dev)
	must(t, err)
	h.Netdev, h.Underlay = ib0.Attrs().Index, underlay.Attrs().Index
	must(t, netlink.LinkSetHardwareAddr(ib0, h.MAC[:]))
	must(t, netlink.LinkSetUp(ib0))
	prefix := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(24, 32)}
	must(t, netlink.AddrAdd(ib0, &netlink.Addr{IPNet: prefix}))
	for _, ip := range neighbours {
		must(t, netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: h.Netdev, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: neighbour,
		}))
	}
}

// dial connects to a TCP port from a namespace.
func dial(from *nstest.Namespace, addr string) (conn net.Conn, err error) {
	from.Do(func() { conn, err = net.DialTimeout("tcp", addr, 10*time.Second) })
	return conn, err
}

// ping sends echo requests from a namespace, and waits for the reply to each.
func ping(t *testing.T, from *nstest.Namespace, to netip.Addr, times int) {
	t.Helper()
	network, protocol, request := "ip4:icmp", unix.IPPROTO_ICMP, icmp.Type(ip4.ICMPTypeEcho)
	if to.Is6() {
		network, protocol, request = "ip6:ipv6-icmp", unix.IPPROTO_ICMPV6, ip6.ICMPTypeEchoRequest
	}
	var conn *icmp.PacketConn
	var err error
	from.Do(func() { conn, err = icmp.ListenPacket(network, "") })
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for n := range times {
		message, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: 1, Seq: n, Data: make([]byte, 56)}}).Marshal(nil)
		must(t, err)
		_, err = conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice()})
		must(t, err)
		for got := make([]byte, 1500); ; {
			size, _, err := conn.ReadFrom(got)
			must(t, err)
			reply, err := icmp.ParseMessage(protocol, got[:size])
			must(t, err)
			if echo, ok := reply.Body.(*icmp.Echo); ok && reply.Type != request && echo.Seq == n {
				break
			}
		}
	}
}

// The attached programs carry pings and small TCP segments of the kernel, whose checksums are partial, between two hosts
// without any process. All that one host has sent, the other one has received.
func TestFastPathCarriesTraffic(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) {
			hosts, spaces := attachedHosts(t, u.addrs)
			for _, addrs := range [][2]netip.Addr{inner4, inner6} {
				ping(t, spaces[0], addrs[1], 50)
				rtts := exchange(t, spaces, netip.AddrPortFrom(addrs[1], 4000).String(), 500)
				t.Logf("TCP, %d exchanges: median %v", len(rtts), rtts[len(rtts)/2])
			}
			read := func() [2]bpf.GateCounts { return [2]bpf.GateCounts{hosts[0].gate.Counts(), hosts[1].gate.Counts()} }
			counts := read()
			for last := counts; ; last = counts { // until the last segments have arrived
				time.Sleep(50 * time.Millisecond)
				if counts = read(); counts == last {
					break
				}
			}
			t.Logf("%+v", counts)
			for i := range counts {
				sent, received := counts[i], counts[1-i]
				if n := sent.Tx[bpf.FastCarried]; n != received.Rx[bpf.FastCarried] || n < 1100 || sent.TxBytes != received.RxBytes || received.Rx[bpf.FastDamaged] != 0 {
					t.Errorf("host %d has sent %+v, the other one has received %+v", i, sent, received)
				}
			}
		})
	}
}

// exchange sends small requests over one TCP connection, waits for the answer to each, and returns how long each took, sorted.
func exchange(t *testing.T, spaces [2]*nstest.Namespace, addr string, times int) (took []time.Duration) {
	t.Helper()
	var listener net.Listener
	var err error
	spaces[1].Do(func() { listener, err = net.Listen("tcp", addr) })
	must(t, err)
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	conn, err := dial(spaces[0], addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for n := range times {
		message := []byte(fmt.Sprintf("%*d", 1+n%400, n))
		got := make([]byte, len(message))
		start := time.Now()
		_, err := conn.Write(message)
		must(t, err)
		_, err = io.ReadFull(conn, got)
		must(t, err)
		took = append(took, time.Since(start))
		if !slices.Equal(got, message) {
			t.Fatalf("got %q, want %q", got, message)
		}
	}
	slices.Sort(took)
	return took
}
