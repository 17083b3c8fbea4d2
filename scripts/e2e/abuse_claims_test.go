package e2e

import (
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// claimRate is how many crafted ARP messages per second must cost little.
const claimRate = 2000

// One address, claimed by turns from two queue pairs of one GID, costs an interface
// with many peers little, and honest hosts hardly notice it (security review M1).
func TestR07AbuseAlternatingClaims(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	f := &floods{t: t, a: s.a, b: s.b, lasts: floodShort}
	if *soak {
		f.lasts = floodLong
	}
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
	before, target, claims := s.a.book(), s.a.qp().QPN, 0
	f.measure("alternating claims", func() {
		for range claimRate * floodTick / time.Second {
			qpn := malloryQPN + hca.QPN(claims%2)
			packet := rightPacket(target, message(ipoib.EtherTypeARP, s.claim(qpn, s.mallory.addr).Append(nil)))
			packet.SrcQPN = qpn
			s.mallory.send(s.a.underlay(), packet)
			claims++
		}
	})
	if n := s.a.book().since(before).of("neigh_from_fabric"); n < uint64(claims)/2 {
		t.Errorf("%d of %d claims came to the table", n, claims)
	}
	s.end(floodLoss)
}
