package udp_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

func TestDefaultNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if _, err := udp.DefaultNetdev(); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("DefaultNetdev in an empty namespace: %v, want hca.ErrNoDevice", err)
	}
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "one", b, "one", 1500)
	checkDefault(t, a, "one")
	nstest.Veth(t, a, "two", b, "two", 1500)
	for _, other := range []string{
		"10.0.0.0/8 dev one", "0.0.0.0/1 dev one", "multicast default dev one metric 1", "::/1 dev one", "default dev one table 100",
	} {
		a.Run("ip", append([]string{"route", "add"}, strings.Fields(other)...)...)
	}
	a.Do(func() {
		if name, err := udp.DefaultNetdev(); err == nil || !strings.Contains(err.Error(), "one, two") {
			t.Errorf("DefaultNetdev = %q, %v, want both candidates named", name, err)
		}
	})
	addr(t, a, "two", "10.0.0.1/24")
	a.Run("ip", "route", "add", "default", "via", "10.0.0.9", "metric", "2")
	checkDefault(t, a, "two")
	a.Run("ip", "route", "del", "default", "via", "10.0.0.9")
	a.Run("ip", "route", "add", "default", "metric", "9", "nexthop", "via", "10.0.0.9", "nexthop", "via", "10.0.0.8")
	checkDefault(t, a, "two")
	a.Run("ip", "route", "del", "default", "metric", "9")
	a.Run("ip", "-6", "route", "add", "default", "dev", "one")
	checkDefault(t, a, "one")
}

func checkDefault(t *testing.T, ns *nstest.Namespace, want string) {
	t.Helper()
	ns.Do(func() {
		if got, err := udp.DefaultNetdev(); got != want || err != nil {
			t.Errorf("DefaultNetdev = %q, %v, want %q", got, err, want)
		}
	})
}

// A netdev that is deleted and created again has a new index, and the watcher reports
// both changes.
func TestWatchNetdevs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns := nstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	var changed <-chan struct{}
	var err error
	ns.Do(func() { changed, err = udp.WatchNetdevs(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	find := func() (n udp.Netdev, err error) {
		ns.Do(func() { n, err = udp.FindNetdev("eth7") })
		return n, err
	}
	await := func(what string, ok func(udp.Netdev, error) bool) udp.Netdev {
		t.Helper()
		for range changed {
			if n, err := find(); ok(n, err) {
				return n
			}
		}
		t.Fatal(what)
		return udp.Netdev{}
	}
	absent := func(_ udp.Netdev, err error) bool { return errors.Is(err, hca.ErrNoDevice) }
	there := func(_ udp.Netdev, err error) bool { return err == nil }
	await("absent at the start", absent)
	ns.Run("ip", "link", "add", "eth7", "address", "02:00:00:00:00:07", "type", "bridge")
	first := await("made", there)
	ns.Run("ip", "link", "del", "eth7")
	await("deleted", absent)
	ns.Run("ip", "link", "add", "eth7", "address", "02:00:00:00:00:07", "type", "bridge")
	if again := await("made again", there); again.Index == first.Index || again.MAC != first.MAC || first.MAC != [6]byte{2, 0, 0, 0, 0, 7} {
		t.Errorf("netdev %+v, after its deletion and creation %+v: want another index and the same MAC", first, again)
	}
	cancel()
	for range changed { // until the channel is closed
	}
}
