package e2e

import (
	"net/netip"
	"testing"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// A local user's ordinary socket cannot inject messages into ib0 of the same host
// by the multicast that the kernel loops back, from any of the host's addresses.
func TestLocalSocketInjectsNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	s.a.Run("ip", "addr", "add", "172.17.0.1/32", "dev", "lo")
	msg := message(ipoib.EtherTypeIPv4, ipv4Echo(addr("10.44.0.77"), addr(s.a.ip4())))
	for _, from := range []netip.Addr{s.a.underlay(), addr("172.17.0.1")} {
		local := newMalloryAt(s.a, from)
		s.a.expect("by a local socket at "+from.String(), map[string]uint64{"hca_wire_socket_drops": volley}, func() {
			for range volley {
				local.send(groupAddr, rightPacket(hca.QPNMulticast, msg))
			}
		})
	}
	s.end(1)
}
