package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// claimRate is the rate of crafted ARP messages, per second, that must cost little.
const claimRate = 2000

// Crafted ARP messages cost an interface with many peers little and hardly affect honest
// hosts, regardless of what varies between messages: the peer, its queue pair or the
// claimed address. The test prints each figure with its goal. It fails above failCPU, or
// when pings take ten times as long.
func TestR07AbuseCraftedARPs(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	s := newSiege(t, join)
	f := &floods{t: t, a: s.a, b: s.b, lasts: form(floodShort, floodLong)}
	spoofer := newSpoofer(s)
	for i := range heardLimit {
		if spoofer.ask(i); i%4 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	if n := len(s.a.iface().Peers); n < heardLimit/2 {
		t.Errorf("%d peers, want %d at least", n, heardLimit/2)
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
				arp.TPA = arp.SPA // an announcement does not fill the kernel's cache, which all namespaces share
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
		// With so many peers, the status shows the table's counters half a second later.
		eventually(t, repairLimit, fmt.Sprintf("%s: half of %d messages reach the table", c.what, sent), func() bool {
			return s.a.book().since(before).of("neigh_from_fabric") >= uint64(sent)/2
		})
	}
	s.end(floodLoss)
}
