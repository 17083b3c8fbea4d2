package e2e

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// An ordinary socket of a host cannot inject messages into ib0 of the same host by
// the multicast that the kernel loops back, whoever owns it: they come from one of
// the host's own addresses.
func TestLocalSocketInjectsNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	local := newMallory(s.a)
	msg := message(ipoib.EtherTypeIPv4, ipv4Echo(addr("10.44.0.77"), addr(s.a.ip4())))
	s.a.expect("by a local socket", map[string]uint64{"hca_own_source": volley}, func() {
		for range volley {
			local.send(groupAddr, rightPacket(uint32(hca.QPNMulticast), msg))
		}
	})
	s.end(1)
}
