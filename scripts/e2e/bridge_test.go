package e2e

import (
	"fmt"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// bridgeMAC differs from ib0's, so that frames of the bridge's own address
// carry a MAC that ib0 does not know yet.
const bridgeMAC = "02:00:00:00:44:01"

// ib0 of one host is a port of a bridge. The host's own address lies on the
// bridge and is reached, and so are several guests.
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

	// Three guests and a macvlan interface of the host, each reached from the first packet on.
	guests := []*nstest.Namespace{a.guest("guest0", 101), a.guest("guest1", 102), a.guest("guest2", 103), a.macvlan("br0", 104)}
	reach := func(what string) {
		t.Helper()
		for i, g := range guests {
			for _, to := range []string{guestIP4(101 + i), guestIP6(101 + i)} {
				b.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "2", to)
			}
			for _, to := range []string{b.ip4(), b.ip6()} {
				g.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "2", to)
			}
		}
		t.Logf("%s: all pairs reach each other", what)
	}
	reach("at first")
	pingAll(a, b)
	if st := a.iface().Stations; len(st) < 6 { // ib0, br0, three guests, a macvlan
		t.Errorf("stations %+v", st)
	}
	// No guest needs to speak first after a restart.
	a.daemon.kill()
	a.start()
	a.waitCarrier()
	for i := range guests {
		for _, to := range []string{guestIP4(101 + i), guestIP6(101 + i)} {
			eventually(t, repairLimit, to+" is reached after a restart", func() bool {
				return b.Command("ping", "-n", "-q", "-c", "1", "-W", "0.2", to).Run() == nil
			})
		}
	}
	reach("after a restart")
}

// A macvlan interface on ib0, which has addresses itself, does not divert the host's traffic.
func TestMacvlan(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	g := a.macvlan(ifName, 101)
	for range 2 {
		g.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "2", b.ip4())
		b.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "2", guestIP4(101))
		b.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "2", guestIP6(101))
		pingAll(a, b)
	}
}

func guestIP4(number int) string { return fmt.Sprintf("10.44.0.%d", number) }
func guestIP6(number int) string { return fmt.Sprintf("fd44::%d", number) }

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

// guest returns a namespace behind the host's bridge, with addresses.
func (h *host) guest(name string, number int) *nstest.Namespace {
	h.tb.Helper()
	guest := nstest.New(h.tb)
	nstest.Veth(h.tb, guest, nstest.Dev, h.Namespace, name, h.iface().MTU)
	h.Run("ip", "link", "set", name, "master", "br0")
	guest.Run("ip", "addr", "add", guestIP4(number)+"/24", "dev", nstest.Dev)
	guest.AddIPv6(nstest.Dev, guestIP6(number)+"/64")
	return guest
}

// macvlan returns a namespace with a macvlan interface on one of the host's interfaces, with addresses.
func (h *host) macvlan(on string, number int) *nstest.Namespace {
	h.tb.Helper()
	guest := nstest.New(h.tb)
	h.Run("ip", "link", "add", "mv0", "link", on, "type", "macvlan", "mode", "bridge")
	h.Run("ip", "link", "set", "mv0", "netns", guest.Path())
	guest.Run("ip", "link", "set", "mv0", "up")
	guest.Run("ip", "addr", "add", guestIP4(number)+"/24", "dev", "mv0")
	guest.AddIPv6("mv0", guestIP6(number)+"/64")
	return guest
}
