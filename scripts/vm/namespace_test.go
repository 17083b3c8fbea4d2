package vm

import (
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// Network namespaces share the RDMA devices: a container's macvlan on the netdev
// adds GIDs to the port's table. A daemon works and does not use these GIDs. A daemon
// in another namespace than the netdev reports that.
func TestGIDsOfOtherNamespaces(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 1500)
		g := newRxeGuest(t, series, segment)
		g.Run("ip", "addr", "del", nstest.IPv4(0)+"/24", "dev", "eth0")
		addContainer(g, nstest.IPv4(7)) // its GIDs come before ours
		g.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", "eth0")
		e := newEndpoint(t, g, 0, "--device", rxe0)
		e.join()
		if _, got := e.status(); got.QP == nil || got.QP.GID != nstest.IPv4(0) {
			t.Errorf("%+v, want a queue pair with %s", got, nstest.IPv4(0))
		}
		requireElsewhere(t, g)
	})
}

// container is a network namespace of a guest.
const container = "container"

func addContainer(m machine, addr string) {
	m.Run("ip", "netns", "add", container)
	m.Run("ip", "link", "add", "mv0", "link", "eth0", "type", "macvlan", "mode", "bridge")
	m.Run("ip", "link", "set", "mv0", "netns", container)
	m.Run("ip", "-n", container, "addr", "add", addr+"/24", "dev", "mv0")
	m.Run("ip", "-n", container, "link", "set", "mv0", "up")
}

// requireElsewhere runs a daemon in a namespace without the netdev.
func requireElsewhere(t *testing.T, m machine) {
	t.Helper()
	m.Run("ip", "netns", "add", "elsewhere")
	const control = "/run/ipoibd/elsewhere.sock"
	inside := []string{"netns", "exec", "elsewhere"}
	m.start("ip", append(inside, "ipoibd", "run", "--device", rxe0, "--name", "ib7", "--control", control)...)
	eventually(t, "ib7 is there", func() bool { return m.Try("ip", "-n", "elsewhere", "link", "set", "ib7", "up") })
	eventually(t, "the daemon reports why ib7 has to wait", func() bool {
		return strings.Contains(m.Run("ipoibd", "status", "--control", control), "in this network namespace")
	})
}
