package iface

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
	"ipoibd/ud/ipoib"
)

// crowd is many peers of one host. They exist only as datagrams.
type crowd struct {
	host  *testHost
	group netip.Addr // the broadcast group on the underlay
	qkey  hca.QKey
	qpn   hca.QPN // of the host
}

func newCrowd(h *testHost) *crowd {
	s := h.status()
	return &crowd{host: h, group: s.Groups[0].Attach.Addr(), qkey: s.QP.QKey, qpn: s.QP.QPN}
}

// gid is the address of peer i on the underlay, and ip the one on ib0.
func (c *crowd) gid(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 | byte(i>>16), byte(i >> 8), byte(i)})
}

func (c *crowd) ip(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 | byte(i>>16), byte(i >> 8), byte(i)})
}

func (c *crowd) qpnOf(i int) hca.QPN { return hca.QPN(0x1000 + i) }

// arp sends a multicast ARP request of peer i to the host.
func (c *crowd) arp(i int, target netip.Addr) { c.arpFrom(i, c.qpnOf(i), target) }

// arpFrom is arp from a queue pair of peer i.
func (c *crowd) arpFrom(i int, qpn hca.QPN, target netip.Addr) {
	c.arpAt(c.gid(i), qpn, c.ip(i), target)
}

// arpAt sends a multicast ARP request from an address of the underlay.
func (c *crowd) arpAt(from netip.Addr, qpn hca.QPN, ip, target netip.Addr) {
	a := ipoib.ARP{Op: ipoib.ARPRequest, SHA: ipoib.NewAddr(qpn, hca.GIDFromAddr(from)), SPA: ip, TPA: target}
	msg := a.Append(make([]byte, ipoib.HeaderLen, 128))
	ipoib.PutHeader(msg, ipoib.EtherTypeARP)
	b := make([]byte, roce.HeaderLen, roce.HeaderLen+len(msg)+roce.ICRCLen)
	(&roce.BTH{Opcode: roce.OpcodeUDSendOnly, PKey: hca.PKeyDefault, DestQPN: hca.QPNMulticast}).Put(b)
	(&roce.DETH{QKey: c.qkey, SrcQPN: qpn}).Put(b[roce.BTHLen:])
	b = append(b, msg...)
	path := roce.Path{Src: from, Dst: c.group, SrcPort: 0xc000}
	b = binary.LittleEndian.AppendUint32(b, roce.ICRC(&path, b))
	c.host.underlay().Inject(transport.Packet{Src: path.Src, Dst: path.Dst, SrcPort: path.SrcPort, TTL: 1, Data: b})
}

// announce sends gratuitous requests of peers 0 to n-1, all at once and in random order.
func (c *crowd) announce(n int) {
	for _, i := range rand.Perm(n) {
		c.arp(i, c.ip(i))
	}
	synctest.Wait()
}

// send sends a packet of the host to peer i. A peer that the host does not know first asks for
// the host's address.
func (c *crowd) send(i int) {
	mac, ok := c.host.neighbour(c.ip(i))
	if !ok {
		c.arp(i, c.host.ip)
		return
	}
	c.host.sendIP(mac, c.ip(i), 100, 1)
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// An ARP storm of 10,000 requests a second from 10,000 peers: half of them announce
// themselves, and half resolve the host's address and get its answer. Packets between the host
// and another one are not delayed, nothing is dropped and nothing recovers.
func TestARPStormIsAbsorbed(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		const peers, perMilli, length = 10_000, 10, 2000
		c := newCrowd(a)
		before := cpuTime(t)
		for ms := range length {
			for k := range perMilli {
				i := (ms*perMilli + k) % peers
				target := a.ip
				if i%2 == 0 {
					target = c.ip(i)
				}
				c.arp(i, target)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if ms%10 == 0 {
				reach(t, a, b)
			}
		}
		each := (cpuTime(t) - before) / (perMilli * length)
		s := a.status()
		t.Logf("%d peers, %v of CPU for each ARP, %.0f %% of a processor", len(s.Peers), each, each.Seconds()*1e6)
		if len(s.Peers) != peers+1 || s.State != report.InterfaceUp || s.Recovery.Recovered != 0 {
			t.Errorf("%d peers, state %s, recovery %+v", len(s.Peers), s.State, s.Recovery)
		}
		if n := count(s, "rx_drop_", "neigh_drop_", "neigh_peers_evicted"); n != 0 {
			t.Errorf("%d drops: %v", n, s.Counters)
		}
		if limit := time.Millisecond; each > limit {
			t.Errorf("%v of CPU for each ARP, want %v at most", each, limit)
		}
	})
}

// 10,000 peers announce themselves at the same instant, again and again: most find no room,
// because the slow path takes 512 messages at a time. Then they and the host start to talk,
// and after a reset of the device again.
func TestTenThousandPeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const peers = 10_000
		a := bareHost(t, newFabric(t, 1), 1)
		a.verbs = newVerbs()
		a.run()
		a.up()
		c := newCrowd(a)
		for _, pause := range []time.Duration{250, 750, 2000} {
			c.announce(peers)
			s := a.status()
			t.Logf("%d of %d peers, %d announcements had no room", len(s.Peers), peers, count(s, "rx_drop_slow_path_full"))
			time.Sleep(pause * time.Millisecond)
		}
		c.reachAll(t, peers, "after the start")
		if n := len(a.status().Peers); n != peers {
			t.Errorf("%d peers, want %d", n, peers)
		}

		for _, slow := range []time.Duration{0, time.Millisecond} {
			a.verbs.slow("create_ah", slow)
			if err := a.dev.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			a.waitUp()
			c.reachAll(t, peers, fmt.Sprintf("after the reset, with %v for each handle", slow))
		}
	})
}

// reachAll sends to all peers in turn, a packet each 100 us, until one has left for each,
// and logs how long that takes.
func (c *crowd) reachAll(t *testing.T, n int, when string) {
	t.Helper()
	reached := make([]bool, n)
	left := n
	c.host.fabric.Capture(func(d memfabric.Capture) {
		a := d.Packet.Dst.As4()
		i := int(a[1]-18)<<16 | int(a[2])<<8 | int(a[3])
		if a[0] == 198 && i < n && !reached[i] {
			reached[i] = true
			left--
		}
	})
	defer c.host.fabric.Capture(nil)
	start, cpu, sent := time.Now(), cpuTime(t), 0
	for i := 0; left > 0 && sent < 20*n; i = (i + 1) % n {
		if reached[i] {
			continue
		}
		c.send(i)
		sent++
		time.Sleep(100 * time.Microsecond)
		synctest.Wait()
	}
	s := c.host.status()
	t.Logf("%s: %d packets to %d peers in %v, %v of CPU, %d without room", when, sent, n, time.Since(start).Round(time.Millisecond),
		(cpuTime(t) - cpu).Round(time.Millisecond), count(s, "tx_drop_slow_path_full"))
	if left > 0 {
		t.Errorf("%s: %d of %d peers were not reached: %v", when, left, n, s.Counters)
	}
}
