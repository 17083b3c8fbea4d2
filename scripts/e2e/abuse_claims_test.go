package e2e

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// claimRate is how many crafted ARP messages per second must cost little.
const claimRate = 2000

// Crafted ARP messages cost an interface with many peers little, and honest hosts
// hardly notice them, whatever the messages vary: the peer, its queue pair, or the
// address that it claims. The test prints each figure beside its goal, and fails at
// failCPU or pings ten times as long (security review M1).
func TestR07AbuseCraftedARPs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	f := &floods{t: t, a: s.a, b: s.b, lasts: form(floodShort, floodLong)}
	s.a.Run("ip", "route", "add", "198.18.0.0/15", "via", s.mallory.addr.String()) // so that answers to invented peers get handles
	spoofer := newSpoofer(s)
	for i := range heardLimit {
		spoofer.ask(i)
		time.Sleep(time.Millisecond)
	}
	if n := len(s.a.iface().Peers); n < heardLimit/2 {
		t.Errorf("%d peers are not many", n)
	}
	f.measure("quiet", nil)
	target := s.a.qp().QPN
	claim := func(qpn hca.QPN, change func(*ipoib.ARP)) {
		arp := s.claim(qpn, s.mallory.addr)
		change(&arp)
		packet := rightPacket(target, message(ipoib.EtherTypeARP, arp.Append(nil)))
		packet.SrcQPN = qpn
		s.mallory.send(s.a.underlay(), packet)
	}
	for _, c := range []struct {
		what string
		send func(i int)
	}{
		{"one address claimed by two queue pairs in turn", func(i int) {
			claim(malloryQPN+hca.QPN(i%2), func(*ipoib.ARP) {})
		}},
		{"a new queue pair of one GID each time", func(i int) {
			claim(0x100000+hca.QPN(i), func(*ipoib.ARP) {})
		}},
		{"a new address of one peer each time", func(i int) {
			claim(malloryQPN, func(arp *ipoib.ARP) {
				arp.SPA = netip.AddrFrom4([4]byte{10, 45, byte(i >> 8), byte(i)})
				arp.TPA = arp.SPA // announced: the kernel's cache, which all namespaces share, stays small
			})
		}},
		{"a new peer each time", func(i int) { spoofer.ask(heardLimit + i) }},
	} {
		before, sent := s.a.book(), 0
		f.measure(c.what, func() {
			for range claimRate * floodTick / time.Second {
				c.send(sent)
				sent++
			}
		})
		if n := s.a.book().since(before).of("neigh_from_fabric"); n < uint64(sent)/2 {
			t.Errorf("%s: %d of %d messages came to the table", c.what, n, sent)
		}
	}
	s.end(floodLoss)
}
