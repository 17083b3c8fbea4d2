package vm

import (
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/dhcp"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// TestGuestBehindBridge: a guest, with a kernel and a DHCP client of its own, is behind the bridge of a host whose
// ib0 is a port of it. A server on the other host gives it an address. It is reached, also after the daemon was killed,
// and reaches the other host.
func TestGuestBehindBridge(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		underlay := nstest.NewSegment(t, 1500)
		b := newEndpoint(t, newHost(t, underlay), 1)
		b.join()
		// The guest's segment is the host, whose br0 has ib0 as a port.
		lan := nstest.NewSegment(t, b.mtu())
		nstest.Veth(t, lan.Namespace, nstest.Dev, underlay.Namespace, "lan", underlay.MTU())
		underlay.Run("ip", "link", "set", "lan", "master", "br0")
		lan.Run("ip", "address", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
		lan.Run("ethtool", "-K", nstest.Dev, "tx", "off")
		a := newEndpoint(t, inNamespace{lan.Namespace, t, t.TempDir()}, 0, "--underlay", nstest.Dev)
		lan.Run("ip", "link", "set", ifName, "up", "master", "br0")
		lan.Run("ip", "address", "add", a.ip4()+"/24", "dev", "br0")
		lan.AddIPv6("br0", a.ip6()+"/64")
		eventually(t, "carrier of "+ifName, a.carrier)

		server := dhcp.Dnsmasq(dhcp.Place{Dir: t.TempDir()}, ifName, 100, 100)
		b.start(server[0], server[1:]...)
		g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: lan, Bare: true}}})}
		g.Run("ip", "link", "set", "eth0", "up")
		client := dhcp.Udhcpc(dhcp.Place{Dir: "/tmp", Write: func(path, text string) { g.Put(path, 0o755, []byte(text)) }}, "eth0")
		g.start(client[0], client[1:]...)
		eventually(t, "the guest has an address", func() bool {
			return strings.Contains(g.Run("ip", "-4", "address", "show", "dev", "eth0"), "10.44.0.100/24")
		})
		g.Run("ip", "address", "add", "fd44::100/64", "dev", "eth0", "nodad")

		pings := "100"
		if guest.Soak() {
			pings = "1000"
		}
		both := func(when string) {
			t.Helper()
			for _, to := range []string{"10.44.0.100", "fd44::100"} {
				eventually(t, to+" is reached "+when, func() bool { return b.Try("ping", "-n", "-c", "1", "-W", "1", to) })
				b.Run("ping", "-n", "-q", "-c", pings, "-i", "0.02", "-W", "5", to)
				a.Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "5", to)
			}
			for _, to := range []string{b.ip4(), b.ip6(), a.ip4(), a.ip6()} {
				g.Run("ping", "-n", "-q", "-c", "5", "-i", "0.1", "-W", "5", to)
			}
		}
		both("at first")
		a.kill()
		a.startDaemon("--underlay", nstest.Dev)
		eventually(t, "carrier of "+ifName, a.carrier)
		both("after the daemon was killed")
	})
}
