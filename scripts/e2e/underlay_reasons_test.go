package e2e

import (
	"fmt"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// What an administrator changes on the underlay is reported with the name of the netdev, and
// with what to do: another IP family of the GIDs in the events, and in the status a netdev
// that is down, that has no address, or that is gone.
func TestR29ReasonsNameTheUnderlay(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newPair(t)[0]
	a.join()
	shows := func(command, text string) {
		t.Helper()
		eventually(t, repairLimit, text, func() bool {
			out, err := a.daemon.command(command).CombinedOutput()
			return err == nil && strings.Contains(string(out), text)
		})
	}
	a.Run("ip", "addr", "del", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
	shows("events", fmt.Sprintf("the GID of port 1 was IPv4 and is now IPv6 (%s): only hosts with IPv6 GIDs can be reached", nstest.IPv6(0)))
	a.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
	shows("events", fmt.Sprintf("the GID of port 1 was IPv6 and is now IPv4 (%s): only hosts with IPv4 GIDs can be reached", nstest.IPv4(0)))
	a.Run("ip", "link", "set", nstest.Dev, "down")
	shows("status", fmt.Sprintf("port 1 is DOWN: port is not active: %s is down, or has no carrier; bring it up: ip link set %[1]s up", nstest.Dev))
	a.Run("ip", "link", "set", nstest.Dev, "up")
	a.Run("ip", "addr", "flush", "dev", nstest.Dev)
	shows("status", fmt.Sprintf("netdev %s: port has no usable GID", nstest.Dev))
	a.Run("ip", "link", "del", nstest.Dev)
	shows("status", "device soft is lost; waiting for it to come back on "+nstest.Dev)
}
