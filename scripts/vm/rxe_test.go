package vm

import (
	"fmt"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// The two ends of a cable within a guest, and their MTU, which allows an IB MTU of
// 4096.
const (
	cableA, cableB = "ea", "eb"
	cableMTU       = 4200
)

// newRxeGuest boots a guest as host 0 of a segment, with an rxe device on a PCI
// function that can be reset.
func newRxeGuest(t *testing.T, series kernel.Series, segment *nstest.Segment) inGuest {
	t.Helper()
	g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0, Bridged: true}}})}
	addRxe(g, rxe0, "eth0")
	return g
}

// addRxe creates an rxe device on an interface.
func addRxe(m runner, name, netdev string) {
	m.Run("rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
}

// cable creates a veth pair with the addresses of hosts 0 and 1 in the guest's only
// namespace (rxe supports no other), and routes packets between the two addresses
// over the pair. Its rules precede the table of local addresses, which would route
// these packets over the loopback.
func cable(g *guest.Guest) {
	g.Run("ip", "link", "add", cableA, "mtu", fmt.Sprint(cableMTU), "type", "veth", "peer", "name", cableB, "mtu", fmt.Sprint(cableMTU))
	for _, end := range []string{cableA, cableB} {
		g.Run("sysctl", "-q", "-w", "net.ipv4.conf."+end+".accept_local=1")
	}
	var batch strings.Builder
	for i, end := range []string{cableA, cableB} {
		table := 100 + i
		fmt.Fprintf(&batch, "addr add %s/24 dev %s\n", nstest.IPv4(i), end)
		fmt.Fprintf(&batch, "link set %s up\n", end)
		fmt.Fprintf(&batch, "route add %s dev %s table %d\n", nstest.IPv4(1-i), end, table)
		fmt.Fprintf(&batch, "rule add pref 5 iif lo from %s to %s lookup %d\n", nstest.IPv4(i), nstest.IPv4(1-i), table)
		fmt.Fprintf(&batch, "rule add pref 6 iif lo oif %s to %s lookup %d\n", end, nstest.IPv4(1-i), table)
	}
	batch.WriteString("rule add pref 100 lookup local\nrule del pref 0\n")
	g.Put("/run/cable", 0o644, []byte(batch.String()))
	g.Run("ip", "-batch", "/run/cable")
}
