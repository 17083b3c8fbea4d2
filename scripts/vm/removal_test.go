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
	// cycles of removal and return under a connection: of the device, and of its
	// netdev's driver.
	cycles = 100
	// underMTU leaves ib0 4092, enough for IPv6.
	underMTU = 4200

	ifIndex = "/sys/class/net/" + ifName + "/ifindex"
)

// The device goes and comes under a daemon in a guest, a hundred times, while a
// TCP connection over ib0 goes on: its removal never waits for the daemon longer
// than two seconds, ib0 stays, without carrier, and what comes back is taken if it
// is the same device. The same when the netdev's driver is taken away.
func TestR22R24Removal(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series)
		s := startStream(t, real, soft)
		index := real.Run("cat", ifIndex)
		var dels, backs []time.Duration
		for range cycles {
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
			t.Errorf("%s is another interface: index %s, was %s", ifName, now, index)
		}
	})
}

// newRealPair is a daemon with Soft-RoCE in a guest, with further arguments, and
// one with the software HCA in a namespace of this machine, which reach each
// other.
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

// removeRxe deletes the device, sees ib0 without its carrier, and returns how
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

// A device with other GUIDs, those of its netdev's new MAC, is not taken in the
// place of the one that is gone, which is when it is back.
func requireOtherLeftAlone(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	mac := strings.TrimSpace(e.Run("cat", "/sys/class/net/eth0/address"))
	before, _ := e.status()
	removeRxe(e)
	setMAC(e, "02:00:00:00:00:99")
	addRxe(e.machine, rxe0, "eth0")
	eventually(t, "the other device is refused", func() bool { return e.says("another device") })
	if d, _ := e.status(); d.State == "open" || d.Opens != before.Opens || e.carrier() {
		t.Errorf("with another device: %+v", d)
	}
	e.Run("rdma", "link", "del", rxe0)
	setMAC(e, mac)
	addRxe(e.machine, rxe0, "eth0")
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

// requireRebinds takes the netdev's driver away, and the device with it; both are
// made again by hand.
func requireRebinds(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	n := netdev{e, filepath.Base(strings.TrimSpace(e.Run("readlink", "/sys/class/net/eth0/device")))}
	n.sendsAtOnce(s)
	var unbinds, backs []time.Duration
	for range cycles {
		unbinds = append(unbinds, n.unbind())
		start := time.Now()
		n.bind()
		s.waitMoves()
		backs = append(backs, time.Since(start))
	}
	requireQuick(t, "driver taken away", unbinds)
	t.Logf("traffic after the return of the driver: %s", spread(backs))
}

// netdev is eth0 of an endpoint's guest.
type netdev struct {
	*endpoint
	device string // on the virtio bus
}

// unbind takes the driver away, sees ib0 without its carrier, and returns how long
// the driver took.
func (n netdev) unbind() time.Duration {
	n.tb.Helper()
	start := time.Now()
	n.driver("unbind")
	took := time.Since(start)
	n.requireAlive()
	eventually(n.tb, ifName+" loses its carrier", func() bool { return !n.carrier() })
	return took
}

// bind gives the driver back, and the netdev all that it had.
func (n netdev) bind() {
	n.tb.Helper()
	n.driver("bind")
	n.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(underMTU), "up")
	n.Run("ip", "addr", "add", nstest.IPv4(n.number)+"/24", "dev", "eth0")
	addRxe(n.machine, rxe0, "eth0")
}

// driver has virtio_net bind or unbind the netdev's device.
func (n netdev) driver(verb string) {
	n.tb.Helper()
	n.write("/sys/bus/virtio/drivers/virtio_net/"+verb, n.device)
}

func (n netdev) write(file, value string) {
	n.tb.Helper()
	n.Run("sh", "-c", fmt.Sprintf("echo %s > %s", value, file))
}

// sendsAtOnce has the driver free a frame when it is in the ring, and not some
// frames later, from its next start on, which is now, with nothing in the ring.
// Otherwise a frame that it holds is freed only after its netdev, which the device
// holds, whose QP rxe does not destroy before its last frame is freed; after 50 s
// it gives up (RXE_POOL_TIMEOUT, drivers/infiniband/sw/rxe/rxe_pool.c; napi_tx and
// virtnet_remove, drivers/net/virtio_net.c).
func (n netdev) sendsAtOnce(s *stream) {
	n.tb.Helper()
	n.write("/sys/module/virtio_net/parameters/napi_tx", "N")
	s.pause()
	n.unbind()
	n.bind()
	s.resume()
	s.waitMoves()
}

// requireQuick judges by the median, as a busy machine makes single ones slow.
func requireQuick(t *testing.T, what string, sample []time.Duration) {
	t.Helper()
	t.Logf("%s: %s", what, spread(sample))
	if d := median(sample); d > delLimit {
		t.Errorf("%s within %v, want %v", what, d, delLimit)
	}
	if d := slices.Max(sample); d > 10*delLimit {
		t.Errorf("%s only after %v", what, d)
	}
}

func median(sample []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(sample))[len(sample)/2]
}

// spread is a sample in words.
func spread(sample []time.Duration) string {
	const ms = time.Millisecond
	return fmt.Sprintf("%v to %v, median %v, of %d", slices.Min(sample).Round(ms), slices.Max(sample).Round(ms), median(sample).Round(ms), len(sample))
}
