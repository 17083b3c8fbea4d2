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
	// underMTU gives ib0 an MTU of 4092, enough for IPv6.
	underMTU = 4200

	ifIndex = "/sys/class/net/" + ifName + "/ifindex"
)

// cycles is how often the device, and the driver of its netdev, are removed and restored
// under a connection.
func cycles() int {
	if guest.Soak() {
		return 100
	}
	return 10
}

// The device of a daemon in a guest is removed and added many times while a
// TCP connection uses ib0. The removal never waits for the daemon longer than two
// seconds, ib0 stays, without carrier, and the daemon uses the returned device only
// if it is the same one. The same holds when the netdev's driver is unbound.
func TestR22R24Removal(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series)
		s := startStream(t, real, soft)
		index := real.Run("cat", ifIndex)
		var dels, backs []time.Duration
		for range cycles() {
			dels = append(dels, removeRxe(real))
			start := time.Now()
			addRxe(real.machine, rxe0, "eth0")
			s.waitMoves()
			backs = append(backs, time.Since(start))
		}
		requireQuick(t, "device removed", dels)
		t.Logf("traffic after the addition of the device: %s", spread(backs))
		requireOtherLeftAlone(t, real, s)
		requireRebinds(t, real, s)
		if now := real.Run("cat", ifIndex); now != index {
			t.Errorf("%s was created again: index %s, was %s", ifName, now, index)
		}
	})
}

// newRealPair returns two endpoints that reach each other: a daemon with Soft-RoCE
// in a guest, started with further arguments, and a daemon with the software HCA in
// a namespace of this machine.
func newRealPair(t *testing.T, series kernel.Series, args ...string) (real, soft *endpoint) {
	t.Helper()
	segment := nstest.NewSegment(t, underMTU)
	g := newRxeGuest(t, series, segment)
	real = newEndpoint(t, g, 0, append([]string{"--device", rxe0}, args...)...)
	soft = newEndpoint(t, newHost(t, segment), 1, "--underlay", nstest.Dev, "--standard-mtu")
	real.join()
	soft.join()
	real.waitReaches(soft)
	return real, soft
}

// removeRxe deletes the device, waits until ib0 loses its carrier, and returns how
// long the deletion took.
func removeRxe(e *endpoint) time.Duration {
	e.tb.Helper()
	start := time.Now()
	e.Run("rdma", "link", "del", rxe0)
	took := time.Since(start)
	e.requireAlive()
	eventually(e.tb, ifName+" loses its carrier", func() bool { return !e.carrier() })
	return took
}

// The daemon ignores a device with other GUIDs, which come from a new MAC of its
// netdev, and uses the right device once it is back.
func requireOtherLeftAlone(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	mac := strings.TrimSpace(e.Run("cat", "/sys/class/net/eth0/address"))
	before, _ := e.status()
	removeRxe(e)
	setMAC(e, "02:00:00:00:00:99")
	addRxe(e.machine, rxe0, "eth0")
	eventually(t, "the other device is refused", func() bool { return e.says("another device") })
	if d, _ := e.status(); d.State == "open" || d.Opens != before.Opens || e.carrier() {
		t.Errorf("the daemon uses another device: %+v", d)
	}
	e.Run("rdma", "link", "del", rxe0)
	setMAC(e, mac)
	addRxe(e.machine, rxe0, "eth0")
	s.waitMoves()
	if d, _ := e.status(); d.Attr.NodeGUID != before.Attr.NodeGUID {
		t.Errorf("the device has GUID %s, had %s", d.Attr.NodeGUID, before.Attr.NodeGUID)
	}
}

// The device is renamed while it is in use, as udev does some time after it has appeared: nothing
// happens to the traffic. A reset by link adds the device again under its new name, and one that is
// deleted and added again by its former name is used as well.
func TestR22Renamed(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		const renamed = "rocep0s2"
		real, soft := newRealPair(t, series, "--reset", "link")
		s := startStream(t, real, soft)
		before, _ := real.status()
		real.Run("rdma", "dev", "set", rxe0, "name", renamed)
		s.waitMoves()
		if now, _ := real.status(); now.Opens != before.Opens {
			t.Errorf("the device was opened %d times after it was renamed, %d times before", now.Opens, before.Opens)
		}
		real.ipoibd("reset", "device")
		real.waitDevice("the device is open again", func(d deviceStatus) bool { return d.State == "open" && d.Opens > before.Opens })
		s.waitMoves()
		real.Run("rdma", "dev", "show", renamed)
		real.Run("rdma", "link", "del", renamed)
		addRxe(real.machine, rxe0, "eth0")
		s.waitMoves()
	})
}

func setMAC(m machine, mac string) {
	m.Run("ip", "link", "set", "eth0", "down")
	m.Run("ip", "link", "set", "eth0", "address", mac)
	m.Run("ip", "link", "set", "eth0", "up")
}

// requireRebinds unbinds the netdev's driver, which removes the device, too, and
// restores both as an operator would.
func requireRebinds(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	n := netdev{e, filepath.Base(strings.TrimSpace(e.Run("readlink", "/sys/class/net/eth0/device")))}
	n.sendsAtOnce(s)
	var unbinds, backs []time.Duration
	for range cycles() {
		unbinds = append(unbinds, n.unbind())
		start := time.Now()
		n.bind()
		s.waitMoves()
		backs = append(backs, time.Since(start))
	}
	requireQuick(t, "unbinding the driver", unbinds)
	t.Logf("traffic after binding the driver: %s", spread(backs))
}

// netdev is eth0 of an endpoint's guest.
type netdev struct {
	*endpoint
	device string // on the virtio bus
}

// unbind unbinds the driver, waits until ib0 loses its carrier, and returns how
// long the driver took.
func (n netdev) unbind() time.Duration {
	n.tb.Helper()
	start := time.Now()
	n.driver("unbind")
	took := time.Since(start)
	n.requireAlive()
	eventually(n.tb, ifName+" loses its carrier", func() bool { return !n.carrier() })
	return took
}

// bind binds the driver and restores the netdev's settings.
func (n netdev) bind() {
	n.tb.Helper()
	n.driver("bind")
	n.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(underMTU), "up")
	n.Run("ip", "addr", "add", nstest.IPv4(n.number)+"/24", "dev", "eth0")
	addRxe(n.machine, rxe0, "eth0")
}

// driver makes virtio_net bind or unbind the netdev's device.
func (n netdev) driver(verb string) {
	n.tb.Helper()
	n.write("/sys/bus/virtio/drivers/virtio_net/"+verb, n.device)
}

func (n netdev) write(file, value string) {
	n.tb.Helper()
	n.Run("sh", "-c", fmt.Sprintf("echo %s > %s", value, file))
}

// sendsAtOnce makes the driver release a frame's sender as soon as the frame is in
// the ring, and not some frames later (napi_tx=N). The driver reads this setting when
// it binds, so sendsAtOnce binds it again while the ring is empty. With the default
// the removal deadlocks: rxe does not destroy a QP before its last frame is released,
// the driver releases its frames only after the netdev is gone, and the device holds
// the netdev. rxe gives up after 50 s (RXE_POOL_TIMEOUT,
// drivers/infiniband/sw/rxe/rxe_pool.c; virtnet_remove, drivers/net/virtio_net.c).
func (n netdev) sendsAtOnce(s *stream) {
	n.tb.Helper()
	n.write("/sys/module/virtio_net/parameters/napi_tx", "N")
	s.pause()
	n.unbind()
	n.bind()
	s.resume()
	s.waitMoves()
}

// requireQuick checks the median, because a busy machine delays single removals.
func requireQuick(t *testing.T, what string, sample []time.Duration) {
	t.Helper()
	t.Logf("%s: %s", what, spread(sample))
	if d := median(sample); d > delLimit {
		t.Errorf("%s took %v (median), want at most %v", what, d, delLimit)
	}
	if d := slices.Max(sample); d > 10*delLimit {
		t.Errorf("%s took %v at worst, want at most %v", what, d, 10*delLimit)
	}
}

func median(sample []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(sample))[len(sample)/2]
}

// spread describes a sample.
func spread(sample []time.Duration) string {
	const ms = time.Millisecond
	return fmt.Sprintf("%v to %v, median %v, of %d", slices.Min(sample).Round(ms), slices.Max(sample).Round(ms), median(sample).Round(ms), len(sample))
}
