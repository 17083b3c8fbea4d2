package e2e

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// If another process changes the link type of ib0 through a queue, which the
// kernel allows while ib0 is down, the type is restored, at the latest by the
// next start of the daemon.
func TestLinkTypeIsRestored(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	q := a.attachForeign()
	a.Run("ip", "link", "set", ifName, "down")
	if err := unix.IoctlSetInt(q.fd, unix.TUNSETLINK, unix.ARPHRD_HIPPI); err != nil { // MACs of 6 bytes
		t.Fatal(err)
	}
	q.close()
	ethernet := func() bool { return strings.Contains(a.Run("ip", "link", "show", ifName), "link/ether") }
	eventually(t, repairLimit, "the type is restored", ethernet) // the kernel permits that while ib0 is down
	a.Run("ip", "link", "set", ifName, "up")
	a.waitCarrier()
	a.daemon.stop()
	a.Run("ip", "link", "set", ifName, "down")
	a.start()
	a.Run("ip", "link", "set", ifName, "up")
	a.AddIPv6(ifName, a.ip6()+"/64") // down removed it
	a.waitCarrier()
	if !ethernet() {
		s := a.iface()
		t.Errorf("the type is not that of Ethernet after the next start; state %s, reason %q", s.State, s.Reason)
	}
	b.waitReaches(a)
	pingAll(a, b)
}
