package iface

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
)

// A flood of one sender passes at its rate, whatever the others do. An honest sender in another bucket always
// passes. Senders are spread over the buckets, differently in each daemon.
func TestOneSenderDoesNotCrowdOutOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSenders()
		gid := func(i uint32) (g hca.GID) { binary.BigEndian.PutUint32(g[12:], i); return g }
		flooder, honest := gid(1), gid(2)
		for i := uint32(2); !s.allow(honest) || s.bucket(honest) == s.bucket(flooder); i++ {
			honest = gid(i)
		}
		passed, refused := 0, 0
		const seconds, perMilli = 10, 20
		for range seconds * 1000 {
			for range perMilli {
				if s.allow(flooder) {
					passed++
				}
			}
			if !s.allow(honest) {
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		if want := senderBurst + seconds*senderRate; passed > want || passed < want*9/10 || refused > 0 {
			t.Errorf("%d of the flood passed, want %d; %d of the honest sender were refused", passed, want, refused)
		}

		used, same := map[uint64]int{}, 0
		other := newSenders()
		const hosts = 10_000
		for i := range uint32(hosts) {
			used[s.bucket(gid(i))]++
			if s.bucket(gid(i)) == other.bucket(gid(i)) {
				same++
			}
		}
		for b, n := range used {
			if n > 4*hosts/senderBuckets {
				t.Errorf("%d of %d senders share bucket %d", n, hosts, b)
			}
		}
		if len(used) != senderBuckets || same > hosts/20 {
			t.Errorf("%d buckets used; %d of %d senders are in the same bucket of another daemon", len(used), same, hosts)
		}
		if n := testing.AllocsPerRun(100, func() { s.allow(honest) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// A flood from one GID, with invented queue pairs, is dropped under a name of its own, and an honest host is
// resolved at once meanwhile.
func TestFloodOfOneSenderLeavesTheSlowPathToOthers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		c := newCrowd(a)
		for i := range uint32(50_000) {
			if i%20 == 0 {
				time.Sleep(time.Millisecond)
			}
			c.arpFrom(1, hca.QPN(0x1000+i), c.ip(1))
			if i%5000 == 0 {
				start := time.Now()
				b.forgetNeighbours()
				b.resolve(a.ip)
				if _, ok := b.neighbour(a.ip); !ok || time.Since(start) > time.Millisecond {
					t.Errorf("after %d messages the host is resolved in %v: %t", i, time.Since(start), ok)
				}
			}
		}
		synctest.Wait() // until the last messages are counted
		s := a.status()
		if limited, full := count(s, "rx_drop_slow_path_limit"), count(s, "rx_drop_slow_path_full"); limited < 45_000 || full != 0 {
			t.Errorf("%d messages were limited, %d found no room", limited, full)
		}
		checkAccounts(t, s)
	})
}
