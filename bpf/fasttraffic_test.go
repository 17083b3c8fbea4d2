package bpf_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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
			Ports: []uint16{0xc000}, MaxPacket: bpf.MaxFastPacket,
		}, GateKeys: keys}
		other := net.HardwareAddr{2, 0, 0, 0, 0, byte(1 - i)}.String()
		ns.Run("ip", "link", "set", "ib0", "address", net.HardwareAddr(h.MAC[:]).String(), "up")
		ns.Run("ip", "address", "add", inner4[i].String()+"/24", "dev", "ib0")
		ns.AddIPv6("ib0", inner6[i].String()+"/64")
		ns.Run("ip", "neighbour", "add", inner4[1-i].String(), "lladdr", other, "dev", "ib0")
		ns.Run("ip", "neighbour", "add", inner6[1-i].String(), "lladdr", other, "dev", "ib0")
		ns.Do(func() {
			for name, index := range map[string]*int{"ib0": &h.Netdev, nstest.Dev: &h.Underlay} {
				l, err := netlink.LinkByName(name)
				must(t, err)
				*index = l.Attrs().Index
			}
			h.load(t)
			must(t, kernel.AttachProgram(h.Netdev, kernel.Egress, h.path.AtNetdev))
			must(t, kernel.AttachProgram(h.Underlay, kernel.Ingress, h.path.AtUnderlay))
		})
		hosts[i] = h
	}
	for i, h := range hosts {
		spaces[i].Run("ping", "-q", "-c", "1", "-W", "5", addrs[1-i]) // resolves the next hop
		must(t, h.gate.SetPeer(hosts[1-i].asPeer()))
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
				t.Log(spaces[0].Run("ping", "-q", "-c", "50", "-i", "0.005", "-W", "1", addrs[1].String()))
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
	var conn net.Conn
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
	spaces[0].Do(func() { conn, err = net.DialTimeout("tcp", addr, 10*time.Second) })
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
