package vm

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

const (
	// delLimit is how long the removal of a device may wait for the daemon.
	delLimit = 2 * time.Second
	// removals of the device under a connection, and of its netdev.
	removals, rebinds = 100, 3

	ifIndex = "/sys/class/net/" + ifName + "/ifindex"
)

// The device goes and comes under a daemon in a guest, a hundred times, while a
// TCP connection over ib0 goes on: its removal never waits for the daemon longer
// than two seconds, ib0 stays, without carrier, and what comes back is taken if it
// is the same device. The same when the netdev's driver is taken away.
func TestRemoval(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series)
		s := startStream(t, real, soft)
		index := real.Run("cat", ifIndex)
		var dels, backs []time.Duration
		for range removals {
			dels = append(dels, removeRxe(real))
			start := time.Now()
			addRxe(real.machine, "rxe0", "eth0")
			s.waitMoves()
			backs = append(backs, time.Since(start))
		}
		t.Logf("removed within %v, traffic after the addition within %v", spread(dels), spread(backs))
		if d := slices.Max(dels); d > delLimit {
			t.Errorf("a removal took %v", d)
		}
		requireOtherLeftAlone(t, real, s)
		requireRebinds(t, real, s)
		if now := real.Run("cat", ifIndex); now != index {
			t.Errorf("%s is another interface: index %s, was %s", ifName, now, index)
		}
	})
}

// newRealPair is a daemon with Soft-RoCE in a guest, with further arguments, and
// one with the software HCA in a namespace of this machine, which reach each
// other.
func newRealPair(t *testing.T, series kernel.Series, args ...string) (real, soft *endpoint) {
	t.Helper()
	segment := nstest.NewSegment(t, 4200) // ib0 has 4092, enough for IPv6
	g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0}}})}
	addRxe(g, "rxe0", "eth0")
	real = newEndpoint(t, g, 0, append([]string{"--device", "rxe0"}, args...)...)
	soft = newEndpoint(t, newHost(t, segment, 1), 1, "--underlay", nstest.Dev, "--standard-mtu")
	real.join()
	soft.join()
	real.waitReaches(soft)
	return real, soft
}

// removeRxe deletes the device, sees ib0 without its carrier, and returns how
// long the deletion took.
func removeRxe(e *endpoint) time.Duration {
	e.tb.Helper()
	start := time.Now()
	e.Run("rdma", "link", "del", "rxe0")
	took := time.Since(start)
	e.requireAlive()
	eventually(e.tb, ifName+" loses its carrier", func() bool { return !e.carrier() })
	return took
}

// A device with other GUIDs, those of its netdev's new MAC, is not taken in the
// place of the one that is gone, which is when it is back.
func requireOtherLeftAlone(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	mac := strings.TrimSpace(e.Run("cat", "/sys/class/net/eth0/address"))
	before, _ := e.status()
	removeRxe(e)
	setMAC(e, "02:00:00:00:00:99")
	addRxe(e.machine, "rxe0", "eth0")
	eventually(t, "the other device is refused", func() bool { return e.says("another device") })
	if d, _ := e.status(); d.State == "open" || d.Opens != before.Opens || e.carrier() {
		t.Errorf("with another device: %+v", d)
	}
	e.Run("rdma", "link", "del", "rxe0")
	setMAC(e, mac)
	addRxe(e.machine, "rxe0", "eth0")
	s.waitMoves()
	if d, _ := e.status(); d.Attr.NodeGUID != before.Attr.NodeGUID {
		t.Errorf("the device has GUID %s, and had %s", d.Attr.NodeGUID, before.Attr.NodeGUID)
	}
}

func setMAC(m machine, mac string) {
	m.Run("ip", "link", "set", "eth0", "down")
	m.Run("ip", "link", "set", "eth0", "address", mac)
	m.Run("ip", "link", "set", "eth0", "up")
}

// Taking the netdev's driver away takes the device with it; both are made again
// by hand.
func requireRebinds(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	device := filepath.Base(strings.TrimSpace(e.Run("readlink", "/sys/class/net/eth0/device")))
	var took []time.Duration
	for range rebinds {
		start := time.Now()
		e.Run("sh", "-c", fmt.Sprintf("echo %s > /sys/bus/virtio/drivers/virtio_net/unbind", device))
		took = append(took, time.Since(start))
		eventually(t, ifName+" loses its carrier", func() bool { return !e.carrier() })
		e.Run("sh", "-c", fmt.Sprintf("echo %s > /sys/bus/virtio/drivers/virtio_net/bind", device))
		e.Run("ip", "link", "set", "eth0", "up")
		e.Run("ip", "addr", "add", nstest.IPv4(e.number)+"/24", "dev", "eth0")
		addRxe(e.machine, "rxe0", "eth0")
		s.waitMoves()
	}
	t.Logf("driver taken away within %v", spread(took))
	if d := slices.Max(took); d > delLimit {
		t.Errorf("to take the driver away took %v", d)
	}
}

// spread is a sample in words.
func spread(sample []time.Duration) string {
	sorted := slices.Sorted(slices.Values(sample))
	ms := time.Millisecond
	return fmt.Sprintf("%v to %v, median %v, of %d", sorted[0].Round(ms), sorted[len(sorted)-1].Round(ms), sorted[len(sorted)/2].Round(ms), len(sorted))
}
