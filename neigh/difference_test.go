package neigh

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// The differences between snapshots add up to the destinations of the last one.
func TestDestinationsFollowTheSnapshots(t *testing.T) {
	b := attachedBench(t, Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	got, calls := map[ipoib.MAC]hca.UDDest{}, 0
	former := b.snap
	for round := range 300 {
		switch e := numbered(rng.IntN(40)); rng.IntN(6) {
		case 0:
			b.step(Detached{})
			b.step(attachedAt(selfEnd))
		case 1: // it restarts: the same address, another queue pair
			e.qpn += hca.QPN(rng.IntN(3))
			fallthrough
		default:
			b.meet(e, "10.9.1."+string(rune('1'+rng.IntN(9))))
			b.ready(b.step(hostARP(ownMAC, b.macOf(e), 2, ipA, ipB)))
		}
		b.advance(time.Duration(rng.IntN(int(2 * latePause))))
		b.snap.Destinations(former, func(mac ipoib.MAC, to hca.UDDest, ok bool) {
			calls++
			if was, had := got[mac]; had == ok && was == to {
				t.Fatalf("round %d: %v has not changed", round, mac)
			}
			if got[mac] = to; !ok {
				delete(got, mac)
			}
		})
		former = b.snap
		want := map[ipoib.MAC]hca.UDDest{}
		for i := range numShards {
			routes, _ := b.snap.routes.shard(i)
			for key, r := range routes {
				want[key.mac()] = r.dest
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("round %d: %d destinations, want %d", round, len(got), len(want))
		}
	}
	if calls < 100 {
		t.Errorf("only %d differences", calls)
	}
	b.snap.Destinations(former, func(mac ipoib.MAC, _ hca.UDDest, _ bool) { t.Errorf("%v differs from itself", mac) })
}

// Carried data keeps a peer as busy as data in the data path.
func TestCarriedDataCounts(t *testing.T) {
	b := knownBench(t)
	mac := b.macOf(peerB)
	before := b.table.Peers()[0]
	b.pass(2*usedIdle, 20*time.Second, func() { b.step(Carried{MAC: mac, Sent: 100, Heard: 50}) })
	p := b.table.peers.live.byEndpoint[peerB]
	if p == nil {
		t.Fatal("a busy peer was removed")
	}
	n := uint64(2 * usedIdle / (20 * time.Second))
	info := b.table.Peers()[0]
	if info.SentBytes-before.SentBytes != 100*n || info.HeardBytes-before.HeardBytes != 50*n || !p.proven {
		t.Errorf("%d bytes sent, %d heard, proven %t; want %d, %d, true",
			info.SentBytes-before.SentBytes, info.HeardBytes-before.HeardBytes, p.proven, 100*n, 50*n)
	}
	if b.table.Stats().Silences != 0 {
		t.Error("the peer was thought to be silent")
	}
	b.step(Carried{MAC: ipoib.MAC{2, 9}, Sent: 1}) // of a peer that does not exist
	b.advance(usedIdle + sweepInterval)
	if b.table.peers.live.byEndpoint[peerB] != nil {
		t.Error("an idle peer was not removed")
	}
}

// The host is alone until there is a station behind ib0, or a bridge.
func TestAlone(t *testing.T) {
	b := knownBench(t)
	if !b.snap.Alone() {
		t.Error("not alone")
	}
	guest := ipoib.MAC{2, 7, 7, 7, 7, 7}
	b.step(hostARP(guest, ipoib.Broadcast, 1, "10.9.0.77", ipB))
	b.advance(latePause)
	if b.snap.Alone() {
		t.Error("alone, with a guest")
	}
	b.step(HostPort{Up: true, Bridge: 7, Master: ownMAC}) // a bridge has the MAC of one of its ports
	b.advance(latePause)
	if b.snap.Alone() {
		t.Error("alone, as the port of a bridge")
	}
	b.step(HostPort{Up: true})
	b.advance(latePause)
	if !b.snap.Alone() {
		t.Error("not alone after all stations were forgotten")
	}
}
