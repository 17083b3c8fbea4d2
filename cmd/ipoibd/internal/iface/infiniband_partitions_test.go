package iface

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/hca/soft/memsubnet"
	"ipoibd/ud/ipoib"
)

// member starts host n with a P_Key table, and its interface in the partition of a key.
func (s *ibSubnet) member(n byte, key hca.PKey, table ...hca.PKey) *testHost {
	s.t.Helper()
	h := bareHost(s.t, s.fabric, n)
	h.port = s.Attach(h.name, h.guid(), uint16(n)*8)
	h.port.Change(pkeys(table...))
	s.sa.SetPort(h.port.Attr().GIDs[0].GID, h.port.Attr().LID)
	h.runIn(key)
	h.up()
	return h
}

// onPartitions runs a test with two hosts, each with an interface in two partitions: a and b are on the first port, a and
// c in the default partition.
func onPartitions(t *testing.T, test func(t *testing.T, s *ibSubnet, a, b, c, d *testHost)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubnet(t)
		s.sa.SetPartition(hca.PKeyDefault, 2048, 0x1234, 3)
		s.sa.SetPartition(pkeyOther, 1024, 0x5678, 4)
		a, c := s.member(1, hca.PKeyDefault, hca.PKeyDefault, pkeyOther), s.member(3, hca.PKeyDefault, pkeyOther, hca.PKeyDefault)
		b, d := a.sibling(2, pkeyOther), c.sibling(4, pkeyOther)
		b.up()
		d.up()
		a.resolve(c.ip)
		b.resolve(d.ip)
		test(t, s, a, b, c, d)
	})
}

// A device that is opened again serves both interfaces again, by one client of the subnet administrator.
func TestInfiniBandDeviceReturnsToAllPartitions(t *testing.T) {
	onPartitions(t, func(t *testing.T, s *ibSubnet, a, b, c, d *testHost) {
		for range 5 {
			time.Sleep(time.Minute)
			queries := s.asked(mad.MethodGet, hca.GID{})
			a.deviceReset()
			for _, pair := range [][2]*testHost{{a, c}, {b, d}} {
				took := until(func() bool {
					fromA, fromB := talk(t, pair[0], pair[1], 10*time.Millisecond)
					return fromA == 0 && fromB == 0
				}, 0, time.Minute)
				if took > soon {
					t.Errorf("%s and %s reach each other after %s", pair[0].name, pair[1].name, took)
				}
			}
			if n := s.asked(mad.MethodGet, hca.GID{}) - queries; n != 1 {
				t.Errorf("%d queries for ClassPortInfo", n)
			}
		}
	})
}

// Two interfaces on one port, in two partitions, use one client of the subnet administrator. No packet crosses from one
// partition to the other.
func TestInfiniBandPartitionsOfOnePort(t *testing.T) {
	onPartitions(t, func(t *testing.T, s *ibSubnet, a, b, c, d *testHost) {
		for _, key := range []hca.PKey{hca.PKeyDefault, pkeyOther} {
			if got := s.sa.Members(ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, key)); !slices.Equal(got, []uint16{8, 24}) {
				t.Errorf("members of the broadcast group of %04x: LIDs %v", uint16(key), got)
			}
		}
		if n := s.asked(mad.MethodGet, hca.GID{}); n != 2 {
			t.Errorf("%d queries for ClassPortInfo by two ports", n)
		}
		if x, y := a.status(), b.status(); x.MTU != 2044 || y.MTU != 1020 || x.QP.QKey != 0x1234 || y.QP.QKey != 0x5678 {
			t.Errorf("MTUs %d and %d, Q_Keys %#x and %#x", x.MTU, y.MTU, x.QP.QKey, y.QP.QKey)
		}
		// packets returns how many packets of a partition were sent and received, without the MADs and their answers, which
		// are in the default partition.
		packets := func(key hca.PKey) (n uint64) {
			for _, h := range []*testHost{a, c} {
				sent, received := h.port.Packets(key)
				n += sent + received
			}
			if key == hca.PKeyDefault {
				for _, requests := range s.sa.Asked() {
					n -= 2 * uint64(requests)
				}
			}
			return n
		}
		for _, p := range []struct {
			on, off [2]*testHost
			other   hca.PKey // of those that are off
		}{{[2]*testHost{a, c}, [2]*testHost{b, d}, pkeyOther}, {[2]*testHost{b, d}, [2]*testHost{a, c}, hca.PKeyDefault}} {
			p.off[0].tap.SetUp(false)
			p.off[1].tap.SetUp(false)
			synctest.Wait()
			was := packets(p.other)
			if lost, back := talk(t, p.on[0], p.on[1], 5*time.Second); lost+back != 0 {
				t.Errorf("%d and %d packets lost outside partition %04x", lost, back, uint16(p.other))
			}
			if now := packets(p.other); now != was {
				t.Errorf("%d packets in partition %04x, whose interfaces are down", now-was, uint16(p.other))
			}
			p.off[0].tap.SetUp(true)
			p.off[1].tap.SetUp(true)
			time.Sleep(time.Second) // they learn each other's new queue pair by its announcements
			if lost, back := talk(t, p.off[0], p.off[1], time.Second); lost+back != 0 {
				t.Errorf("%d and %d packets lost in partition %04x", lost, back, uint16(p.other))
			}
		}
		for _, pair := range [][2]*testHost{{a, b}, {a, d}, {c, b}} {
			pair[0].resolve(pair[1].ip)
			if mac, known := pair[0].neighbour(pair[1].ip); known {
				t.Errorf("%s knows %s of another partition by %s", pair[0].name, pair[1].name, mac)
			}
		}
		if n := s.Dropped(memsubnet.DropPKey); n != 0 {
			t.Errorf("%d packets dropped for their P_Key", n)
		}
	})
}

// Limited members of a partition reach its full members, but not each other (RFC 4391 section 4). The MGIDs of their
// groups have the bit of full membership, so all members have the same groups.
func TestInfiniBandLimitedMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limited = pkeyOther &^ hca.PKeyMembership
		s := newSubnet(t)
		s.sa.SetPartition(pkeyOther, 2048, 0x5678, 4)
		full := s.member(1, pkeyOther, 0xffff, pkeyOther)
		one := s.member(2, limited, 0x7fff, limited)       // configured as a limited member
		two := s.member(3, pkeyOther, 0xffff, limited)     // configured with the full key
		other := s.member(4, pkeyOther, pkeyOther, 0xffff) // another full member
		group := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, pkeyOther)
		if got := s.sa.Members(group); !slices.Equal(got, []uint16{8, 16, 24, 32}) {
			t.Errorf("members of the broadcast group: LIDs %v", got)
		}
		reachAll(t, full, one)
		reachAll(t, full, two)
		reachAll(t, other, full, one)
		for _, pair := range [][2]*testHost{{one, two}, {two, one}} {
			before := s.Dropped(memsubnet.DropPKey)
			pair[0].resolve(pair[1].ip)
			if _, known := pair[0].neighbour(pair[1].ip); known || s.Dropped(memsubnet.DropPKey) == before {
				t.Errorf("the limited member %s knows %s: %t", pair[0].name, pair[1].name, known)
			}
		}
	})
}
