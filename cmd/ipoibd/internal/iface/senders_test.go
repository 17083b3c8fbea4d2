package iface

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

// A flood of one sender passes at its rate, whatever the others do. An honest sender in another bucket always
// passes. Senders are spread over the buckets, differently in each daemon.
func TestOneSenderDoesNotCrowdOutOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSenders(senderRate, senderBurst)
		gid := func(i uint32) (s hca.UDSource) { binary.BigEndian.PutUint32(s.GID[12:], i); return s }
		flooder, honest := gid(1), gid(2)
		for i := uint32(2); !s.allow(honest) || s.bucket(honest) == s.bucket(flooder); i++ {
			honest = gid(i)
		}
		passed, refused := 0, 0
		const seconds, perMilli = 10, 20
		for range seconds * 1000 {
			for range perMilli {
				if s.allow(flooder) {
					passed++
				}
			}
			if !s.allow(honest) {
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		if want := senderBurst + seconds*senderRate; passed > want || passed < want*9/10 || refused > 0 {
			t.Errorf("%d of the flood passed, want %d; %d of the honest sender were refused", passed, want, refused)
		}

		used, same := map[uint64]int{}, 0
		other := newSenders(senderRate, senderBurst)
		const hosts = 10_000
		for i := range uint32(hosts) {
			used[s.bucket(gid(i))]++
			if s.bucket(gid(i)) == other.bucket(gid(i)) {
				same++
			}
		}
		for b, n := range used {
			if n > 4*hosts/senderBuckets {
				t.Errorf("%d of %d senders share bucket %d", n, hosts, b)
			}
		}
		if len(used) != senderBuckets || same > hosts/20 {
			t.Errorf("%d buckets used; %d of %d senders are in the same bucket of another daemon", len(used), same, hosts)
		}
		if n := testing.AllocsPerRun(100, func() { s.allow(honest) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// A flood from one port of an InfiniBand subnet is bounded as a whole, with or without a GRH, whatever GIDs and queue
// pairs it names. Other ports are not affected.
func TestSendersByPortOfASubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlowPath(&ud.Snapshot{})
		send := func(from hca.UDSource) ud.Reason {
			reason := s.FromFabric([]byte{8, 6, 0, 0}, ud.Sender{UDSource: from})
			if reason == ud.SlowPathed {
				s.fabric.done(<-s.fabric.ready)
			}
			return reason
		}
		passed := 0
		for i := range 10 * senderBurst {
			from := hca.UDSource{LID: 7, QPN: hca.QPN(0x100 + i)}
			if i%2 == 0 {
				binary.BigEndian.PutUint32(from.GID[12:], uint32(i))
			}
			if send(from) == ud.SlowPathed {
				passed++
			}
		}
		if passed != senderBurst {
			t.Errorf("%d messages of one port passed, want %d", passed, senderBurst)
		}
		other := hca.UDSource{LID: 8, QPN: 0x100}
		for s.ports.bucket(other.Port()) == s.ports.bucket(hca.UDSource{LID: 7}) {
			other.LID++
		}
		if got := send(other); got != ud.SlowPathed {
			t.Errorf("a message of another port: %v", got)
		}
	})
}

// A flood from one GID, with invented queue pairs, is dropped under a name of its own, and an honest host is
// resolved at once meanwhile. So is one that this host uses, even if it has the flooder's GID.
func TestFloodOfOneSenderLeavesTheSlowPathToOthers(t *testing.T) {
	for _, name := range []string{"another GID", "the GID of a peer in use"} {
		t.Run(name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				c := newCrowd(a)
				from := c.gid(1)
				if name != "another GID" {
					from = b.under
					useEachOther(t, a, b)
				}
				for i := range hca.QPN(50_000) {
					if i%20 == 0 {
						time.Sleep(time.Millisecond)
					}
					c.arpAt(from, 0x100000+i, c.ip(1), c.ip(1))
					if i%5000 == 0 {
						start := time.Now()
						b.forgetNeighbours()
						b.resolve(a.ip)
						if _, ok := b.neighbour(a.ip); !ok || time.Since(start) > time.Millisecond {
							t.Errorf("after %d messages the host is resolved in %v: %t", i, time.Since(start), ok)
						}
					}
				}
				requireLimited(t, a)
			})
		})
	}
}

// A flood from the very address of a peer in use is bounded as well.
func TestFloodFromTheAddressOfAPeerInUse(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		useEachOther(t, a, b)
		c, qpn, before := newCrowd(a), b.status().QP.QPN, count(a.status(), "rx_slow_path")
		for i := range 50_000 {
			if i%20 == 0 {
				time.Sleep(time.Millisecond)
			}
			c.arpAt(b.under, qpn, b.ip, b.ip)
		}
		requireLimited(t, a)
		const seconds = 50_000 / 20_000.0
		most := senderBurst + peerBurst + seconds*(senderRate+peerRate)
		if n := count(a.status(), "rx_slow_path") - before; float64(n) > most {
			t.Errorf("%d messages passed, want %v at most", n, most)
		}
	})
}

// Strangers that fill the slow path neither keep a message of a peer in use out of it nor delay it.
func TestPeersInUseGoFirst(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		useEachOther(t, a, b)
		peer := ud.Sender{UDSource: hca.UDSource{GID: hca.GIDFromAddr(b.under), QPN: b.status().QP.QPN}, Multicast: true}
		announce := func(f *Iface, from ud.Sender, ip netip.Addr) ud.Reason {
			arp := ipoib.ARP{Op: ipoib.ARPRequest, SHA: ipoib.NewAddr(from.QPN, from.GID), SPA: ip, TPA: ip}
			msg := make([]byte, ipoib.HeaderLen)
			ipoib.PutHeader(msg, ipoib.EtherTypeARP)
			return f.slow.FromFabric(arp.Append(msg), from)
		}
		other := netip.MustParseAddr("10.0.0.250")
		a.onRun(func(f *Iface) {
			c := crowd{}
			for i := range slowItems {
				announce(f, ud.Sender{UDSource: hca.UDSource{GID: hca.GIDFromAddr(c.gid(i)), QPN: c.qpnOf(i)}}, c.ip(i))
			}
			stranger := ud.Sender{UDSource: hca.UDSource{GID: peer.GID, QPN: peer.QPN + 1}}
			if got := announce(f, stranger, other); got != ud.SlowPathFull {
				t.Errorf("a message of a stranger: %v, want %v", got, ud.SlowPathFull)
			}
			if got := announce(f, peer, other); got != ud.SlowPathed {
				t.Errorf("a message of the peer in use: %v, want %v", got, ud.SlowPathed)
			}
		})
		a.onRun(func(f *Iface) { // at any time later
			known := slices.ContainsFunc(f.nbrs.table.Peers(), func(p neigh.PeerInfo) bool { return slices.Contains(p.IPs, other) })
			if !known {
				t.Errorf("the message of the peer in use waits; %d messages of strangers left", len(f.slow.fabric.ready))
			}
		})
	})
}

// useEachOther has each host send data to the other, and waits until both know it.
func useEachOther(t *testing.T, a, b *testHost) {
	t.Helper()
	reach(t, a, b)
	time.Sleep(time.Second)
	synctest.Wait()
}

// requireLimited checks that nearly all of a flood of 50,000 messages was dropped for its rate.
func requireLimited(t *testing.T, h *testHost) {
	t.Helper()
	synctest.Wait() // until the last messages are counted
	s := h.status()
	if limited, full := count(s, "rx_drop_slow_path_limit"), count(s, "rx_drop_slow_path_full"); limited < 45_000 || full != 0 {
		t.Errorf("%d messages were limited, %d found no room", limited, full)
	}
	checkAccounts(t, s)
}
