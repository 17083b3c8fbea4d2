package infiniband

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// startDaemon replaces the kernel's IPoIB of a guest by the daemon on ibwire0, and sets ib0 up.
func startDaemon(t *testing.T, g *guest.Guest, args ...string) *guest.Process {
	t.Helper()
	g.Run("rmmod", "ib_ipoib")
	run := []string{"run", "--device", "ibwire0", "--name", "ib0", "--log-level", "debug"}
	d := g.Start("ipoibd", append(run, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon:\n%s\n%s", d.Stderr(), g.Run("ipoibd", "status", "-v"))
		}
	})
	for end := time.Now().Add(carrierLimit); !g.Try("ipoibd", "status"); time.Sleep(pollStep) {
		select {
		case <-d.Exited():
			t.Fatalf("the daemon has ended\n%s", d.Stderr())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the daemon does not answer\n%s", d.Stderr())
		}
	}
	return d
}

// The daemon and the kernel's IPoIB reach each other on a subnet of OpenSM: over IPv4 and IPv6, with packets as long as
// the MTU, and by multicast. The daemon runs on Linux 6.1 and then on 6.12, the peer on the other.
func TestDaemonAndKernelIPoIB(t *testing.T) {
	guest.Require(t)
	guest.KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		other := kernel.AllSeries[0]
		if other == series {
			other = kernel.AllSeries[1]
		}
		s := sm.Start(t, sm.Spec{Hosts: 2})
		guests := boot(t, s, member{series, []int{0}}, member{other, []int{1}})
		startDaemon(t, guests[0])
		for i, g := range guests {
			g.Run("ip", "link", "set", "ib0", "up")
			waitFor(t, g, "/sys/class/net/ib0/carrier", "1")
			g.Run("ip", "addr", "add", ib0Addr(i)+"/24", "dev", "ib0")
			if mtu := read(g, "/sys/class/net/ib0/mtu"); mtu != "2044" {
				t.Errorf("host %d: MTU %s of ib0, want that of the group less 4", i, mtu)
			}
		}
		group := s.Group(broadcastGroup)
		s.WaitMembers(group.MLID, 0, 1)
		requirePings(t, guests)
		// The kernel knows the daemon by its 20-byte address, with the GID of its port.
		gid := s.GID(0)
		if entry := guests[1].Run("ip", "neigh", "show", ib0Addr(0), "dev", "ib0"); !strings.Contains(entry, colons(gid[:])) {
			t.Errorf("the kernel's neighbour entry is %q, want one with the GID %s", entry, gid)
		}
		for i, g := range guests {
			if c := s.Counters(i); c.Global != 0 {
				t.Errorf("host %d: %+v, want no unicast packet with a GRH", i, c)
			}
			requireQuietKernel(t, g)
		}
	})
}

// requirePings requires that two guests reach each other, with short and long packets.
func requirePings(t *testing.T, guests []*guest.Guest) {
	t.Helper()
	var ip6 [2]string
	for i, g := range guests {
		ip6[i] = linkLocal(t, g, "ib0")
	}
	for i, g := range guests {
		for to, longest := range map[string]int{ib0Addr(1 - i): 2044 - 28, ip6[1-i] + "%ib0": 2044 - 48} {
			for _, size := range []int{56, longest} {
				g.Run("ping", "-c", "5", "-i", "0.2", "-W", "10", "-M", "do", "-s", fmt.Sprint(size), to)
			}
		}
	}
}

// colons returns bytes as `ip` prints them.
func colons(b []byte) string {
	parts := make([]string, len(b))
	for i, v := range b {
		parts[i] = fmt.Sprintf("%02x", v)
	}
	return strings.Join(parts, ":")
}
