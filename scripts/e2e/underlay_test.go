package e2e

import (
	"fmt"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// Whatever an administrator changes on the underlay with ip, ib0 keeps its
// addresses, its carrier is correct, and traffic resumes when the underlay does.
func TestUnderlayFaults(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newPair(t)
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	pingAll(a, b)
	addrs := fmt.Sprint(a.addrs())

	for _, fault := range []struct {
		name        string
		make, mend  func()
		state, says string // expected during the fault
	}{
		{
			"link down", func() { a.Run("ip", "link", "set", nstest.Dev, "down") },
			func() {
				a.Run("ip", "link", "set", nstest.Dev, "up")
				a.AddIPv6(nstest.Dev, nstest.IPv6(0)+"/64") // down took it
			},
			"waiting", "DOWN",
		},
		{
			"addresses removed", func() { a.Run("ip", "addr", "flush", "dev", nstest.Dev) },
			func() { a.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev) },
			"waiting", "no usable GID",
		},
		{
			"MTU too small", func() { a.Run("ip", "link", "set", nstest.Dev, "mtu", "500") },
			func() { a.Run("ip", "link", "set", nstest.Dev, "mtu", "1500") },
			"waiting", "MTU",
		},
		{
			"netdev deleted", func() { a.Run("ip", "link", "del", nstest.Dev) },
			func() { connect(t, hosts) },
			"waiting", "gone",
		},
	} {
		fault.make()
		// The device may first be closed because of the error itself, with another reason.
		eventually(t, repairLimit, fault.name+": noticed, with its reason", func() bool {
			s := a.iface()
			return s.State == fault.state && !a.carrier() && (strings.Contains(s.Reason, fault.says) || strings.Contains(s.Reason, "wait"))
		})
		if got := a.iface().QP; got != nil {
			t.Errorf("%s: the queue pair still exists: %+v", fault.name, got)
		}
		fault.mend()
		took := a.waitReaches(b)
		b.waitReaches(a)
		t.Logf("%-18s reached again %v after the underlay was restored", fault.name, took)
		if now := fmt.Sprint(a.addrs()); !strings.Contains(now, a.ip4()) || fault.name == "addresses removed" && now != addrs {
			t.Errorf("%s: %s had addresses %s, has %s", fault.name, ifName, addrs, now)
		}
	}
}

// If the underlay's MTU is reduced, that of ib0 is too, and both are restored.
func TestUnderlayMTU(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newPair(t)
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	for _, c := range []struct{ under, want int }{{1500, 1444}, {1400, 1344}, {9000, 4092}, {1500, 1444}} {
		for _, h := range hosts {
			h.Run("ip", "link", "set", nstest.Dev, "mtu", fmt.Sprint(c.under))
			eventually(t, repairLimit, "MTU follows", func() bool { return h.iface().MTU == c.want })
		}
		a.waitReaches(b)
		// A packet that fills ib0's MTU, which may not be fragmented.
		if out, err := a.Command("ping", "-n", "-c", "3", "-i", "0.05", "-M", "do", "-s", fmt.Sprint(c.want-28), b.ip4()).CombinedOutput(); err != nil {
			t.Errorf("underlay %d: a packet of %d bytes does not pass: %v\n%s", c.under, c.want, err, out)
		}
	}
}

// newPair creates two hosts at the ends of a cable.
func newPair(tb testing.TB) []*host {
	tb.Helper()
	var hosts []*host
	for i := range 2 {
		hosts = append(hosts, &host{Namespace: nstest.New(tb), tb: tb, number: i, dir: shortDir(tb)})
	}
	connect(tb, hosts)
	return hosts
}

// connect connects the hosts; each end always has the same MAC and addresses.
func connect(tb testing.TB, hosts []*host) {
	tb.Helper()
	nstest.Veth(tb, hosts[0].Namespace, "new0", hosts[1].Namespace, "new0", underlayMTU)
	for i, h := range hosts {
		h.Run("ip", "link", "set", "new0", "down")
		h.Run("ip", "link", "set", "new0", "name", nstest.Dev, "address", fmt.Sprintf("02:00:00:00:00:%02x", i+1))
		h.Run("ip", "link", "set", nstest.Dev, "up")
		h.Run("ip", "addr", "add", nstest.IPv4(i)+"/24", "dev", nstest.Dev)
		h.AddIPv6(nstest.Dev, nstest.IPv6(i)+"/64")
	}
}
