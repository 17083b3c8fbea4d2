package iface

import (
	"testing"
	"testing/synctest"

	"ipoibd/hca"
)

// Two interfaces of one daemon on one device, and another host: all three reach
// each other, by broadcast and by unicast, whatever goes down.
func TestTwoInterfacesOnOneDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, c := newHost(t, fabric, 1), newHost(t, fabric, 3)
		b := a.sibling(2, hca.PKeyDefault)
		for _, h := range []*testHost{a, b, c} {
			h.up()
		}
		reachAll(t, a, b, c)
		if peers := c.status().Peers; len(peers) != 2 || peers[0].GID != peers[1].GID || peers[0].MAC == peers[1].MAC {
			t.Errorf("two interfaces behind one GID: %+v", peers)
		}
		a.tap.SetUp(false)
		synctest.Wait()
		reachAll(t, b, c)
		a.tap.SetUp(true)
		synctest.Wait()
		reachAll(t, a, b, c)
	})
}

func reachAll(t *testing.T, hosts ...*testHost) {
	t.Helper()
	for i, x := range hosts {
		for _, y := range hosts[i+1:] {
			x.resolve(y.ip)
			reach(t, x, y)
		}
	}
}

// twoPartitions runs a test with two devices, each with an interface in two partitions: a and
// b are on the first device, a and c in the first partition.
func twoPartitions(t *testing.T, test func(t *testing.T, a, b, c, d *testHost)) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, c := newHost(t, fabric, 1), newHost(t, fabric, 3)
		b, d := a.sibling(2, pkeyOther), c.sibling(4, pkeyOther)
		for _, h := range []*testHost{a, b, c, d} {
			h.up()
		}
		reachAll(t, a, c)
		reachAll(t, b, d)
		test(t, a, b, c, d)
	})
}

// Interfaces of different partitions do not hear each other, on one device and on two.
func TestPartitionsAreApart(t *testing.T) {
	twoPartitions(t, func(t *testing.T, a, b, c, d *testHost) {
		for _, pair := range [][2]*testHost{{a, b}, {a, d}, {c, b}} {
			pair[0].resolve(pair[1].ip)
			if mac, known := pair[0].neighbour(pair[1].ip); known {
				t.Errorf("%s knows %s of another partition by %s", pair[0].name, pair[1].name, mac)
			}
		}
		if peers := a.status().Peers; len(peers) != 1 {
			t.Errorf("peers: %+v", peers)
		}
	})
}

// The device goes and comes back under both interfaces: it is closed only after both have
// released it, and both are up again.
func TestDeviceReturnsToAllItsInterfaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a := newHost(t, fabric, 1)
		b := a.sibling(2, hca.PKeyDefault)
		a.up()
		b.up()
		for range 20 {
			a.unplug()
			synctest.Wait()
			if s, u := a.status(), b.status(); s.QP != nil || u.QP != nil {
				t.Fatalf("device gone: %+v, %+v", s.QP, u.QP)
			}
			a.plug()
			a.waitUp()
			b.waitUp()
			reachAll(t, a, b)
		}
	})
}
