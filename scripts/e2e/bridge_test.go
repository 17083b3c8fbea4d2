package e2e

import (
	"net/netip"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// bridgeMAC differs from ib0's, so that frames of the bridge's own address
// carry a MAC that ib0 does not know yet.
const bridgeMAC = "02:00:00:00:44:01"

// ib0 of one host is a port of a bridge. The host's own address lies on the
// bridge and is reached; a second MAC behind the bridge is refused and counted.
func TestBridge(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.start()
	a.bridge()
	a.waitCarrier()
	b.join()
	pingAll(a, b)
	if got := a.iface().HostMAC; got != bridgeMAC {
		t.Errorf("the MAC behind %s is %s, want the bridge's, %s", ifName, got, bridgeMAC)
	}

	guest := a.guest("10.44.0.99/24")
	if guest.Command("ping", "-n", "-c", "2", "-W", "0.5", b.ip4()).Run() == nil {
		t.Error("a second MAC behind the bridge reaches the other host")
	}
	a.counts("neigh_drop_foreign_mac")
	pingAll(a, b)
}

// If the host uses ib0 itself, a stray frame from another MAC does not divert
// its traffic.
func TestStrayMAC(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	stray := mac(bridgeMAC)
	request := ipoib.EtherARP{Op: 1, SHA: stray, SPA: netip.MustParseAddr("10.44.0.98"), TPA: netip.MustParseAddr(b.ip4())}
	newPacketSocket(a).send(ether(ipoib.Broadcast, stray, ipoib.EtherTypeARP, request.Append(nil)))
	a.counts("neigh_drop_foreign_mac")
	pingAll(a, b)
	if s := a.iface(); s.HostMAC != s.MAC {
		t.Errorf("the MAC behind %s is %s, want its own, %s", ifName, s.HostMAC, s.MAC)
	}
}

// counts waits until a counter of ib0 is no longer zero.
func (h *host) counts(name string) {
	h.tb.Helper()
	eventually(h.tb, repairLimit, name+" is counted", func() bool {
		n, ok := h.iface().Counters[name]
		if !ok {
			h.tb.Fatalf("no counter %s in %+v", name, h.iface().Counters)
		}
		return n > 0
	})
}

// bridge puts ib0, still down, into a bridge of another MAC that has the host's
// addresses, and sets both up.
func (h *host) bridge() {
	h.tb.Helper()
	h.Run("ip", "link", "add", "br0", "address", bridgeMAC, "type", "bridge")
	h.Run("ip", "link", "set", ifName, "master", "br0")
	h.Run("ip", "link", "set", ifName, "up")
	h.Run("ip", "link", "set", "br0", "up")
	h.addAddrs("br0")
}

// guest returns a namespace behind the host's bridge, with an address.
func (h *host) guest(cidr string) *nstest.Namespace {
	h.tb.Helper()
	guest := nstest.New(h.tb)
	nstest.Veth(h.tb, guest, nstest.Dev, h.Namespace, "guest0", h.iface().MTU)
	h.Run("ip", "link", "set", "guest0", "master", "br0")
	guest.Run("ip", "addr", "add", cidr, "dev", nstest.Dev)
	return guest
}
