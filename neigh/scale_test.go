package neigh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// sizes are the numbers of peers that the benchmarks of scale compare.
var sizes = []int{10, 1000, 10_000, 100_000}

// populated returns a bench with n peers to which the host sends data, all with a handle
// and in the snapshot. The steps are not checked, because a check costs O(peers).
func populated(tb testing.TB, n int) *bench {
	tb.Helper()
	b := attachedBench(tb, Config{MaxPeers: 2 * (n + 1), MaxHeard: n + 1})
	p := &player{bench: b}
	for i := range n {
		addr := scaleIP(i)
		p.quickStep(fabricARP(numbered(i), ipoib.ARPRequest, addr.String(), ipA, true))
		p.quickStep(hostIP(ownMAC, p.macOf(numbered(i)), ip(ipA), addr))
	}
	b.now = b.now.Add(time.Minute)
	p.quickStep(Tick{})
	if s := b.table.Stats(); s.Used != n || s.AHs != n || len(allOf(b.snap.routes)) != n {
		tb.Fatalf("%d used, %d handles, %d routes, want %d each", s.Used, s.AHs, len(allOf(b.snap.routes)), n)
	}
	return b
}

// allOf returns the entries of all shards.
func allOf[K comparable, V any](s *shards[K, V]) map[K]V {
	all := map[K]V{}
	if s != nil {
		for _, shard := range s.maps {
			maps.Copy(all, shard)
		}
	}
	return all
}

// checkShown compares what the next snapshot contains with a snapshot that is made
// from all peers.
func (t *Table) checkShown() error {
	routes, sources := map[macKey]route{}, map[hca.UDSource]source{}
	for _, p := range t.peers.live.byEndpoint {
		ready := p.handle.state == handleReady
		if ready {
			routes[keyOf(p.mac)] = route{hca.UDDest{AH: p.handle.ah, QPN: p.qpn, QKey: t.host.link.qkey}, &p.sent}
		}
		switch {
		case p.lid != 0:
			sources[p.sourceAt(p.lid, false)] = source{p.mac, p.used, &p.heard}
		case t.host.link.lid == 0 && (ready || p.mac != plainMAC(p.gid)):
			sources[p.key()] = source{p.mac, p.used, &p.heard}
		}
	}
	if got := allOf(t.view.routes.table); !maps.Equal(got, routes) {
		return fmt.Errorf("the next snapshot has routes %v, want %v", got, routes)
	}
	if got := allOf(t.view.sources.table); !maps.Equal(got, sources) {
		return fmt.Errorf("the next snapshot has sources %v, want %v", got, sources)
	}
	return nil
}

// scaleIP is the address of peer i.
func scaleIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 64 | byte(i>>16), byte(i >> 8), byte(i)})
}

// TestChangeCopiesFewPeers: among 10,000 peers, a change copies only some, and the earlier
// snapshot stays as it was.
func TestChangeCopiesFewPeers(t *testing.T) {
	const n, most = 10_000, 100
	b := populated(t, n)
	before := b.snap
	routes, sources := allOf(before.routes), allOf(before.sources)
	for i := range 100 {
		p := b.table.peers.live.byEndpoint[numbered(i*n/100)]
		b.table.peers.live.setQPN(p, p.qpn+1)
		b.table.view.show(p)
		if copied := b.table.view.routes.copied + b.table.view.sources.copied; copied > most {
			t.Errorf("the change of peer %d copied %d peers, want %d at most", i, copied, most)
		}
		b.table.view.snapshot()
	}
	if !maps.Equal(allOf(before.routes), routes) || !maps.Equal(allOf(before.sources), sources) {
		t.Error("the earlier snapshot has changed")
	}
	if err := b.table.checkShown(); err != nil {
		t.Error(err)
	}
}

// TestTenThousandPeersByDefault: a table with the default bounds keeps 10,000 peers that
// announce themselves at once, and 10,000 others to which the host sends data.
func TestTenThousandPeersByDefault(t *testing.T) {
	const n = 10_000
	b := attachedBench(t, Config{})
	p := &player{bench: b}
	for i := range 2 * n {
		addr := scaleIP(i)
		p.quickStep(fabricARP(numbered(i), ipoib.ARPRequest, addr.String(), addr.String(), true))
		if i < n {
			p.quickStep(hostIP(ownMAC, p.macOf(numbered(i)), ip(ipA), addr))
		}
	}
	if s := b.table.Stats(); s.Used != n || s.Heard != n || s.AHs != n || s.Evicted != 0 {
		t.Errorf("%+v, want %d peers of each class", s, n)
	}
	if err := b.table.check(); err != nil {
		t.Error(err)
	}
}

// BenchmarkLookup measures the lookups of the data path for a frame each way, for one
// peer and for a random one at a time. The latter includes the misses of the caches.
func BenchmarkLookup(b *testing.B) {
	for _, n := range sizes {
		bench := populated(b, n)
		order := rand.New(rand.NewPCG(1, 2)).Perm(max(n, 1<<16))
		macs, ends := make([]ipoib.MAC, len(order)), make([]endpoint, len(order))
		for i, k := range order {
			ends[i] = numbered(k % n)
			macs[i] = bench.macOf(ends[i])
		}
		for _, c := range []struct {
			name string
			mask int
		}{{"one", 0}, {"random", 1<<16 - 1}} {
			b.Run(fmt.Sprintf("send/%d/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					bench.snap.Unicast(macs[i&c.mask])
					i++
				}
			})
			b.Run(fmt.Sprintf("receive/%d/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					bench.snap.PeerMAC(ends[i&c.mask].key())
					i++
				}
			})
		}
	}
}

// BenchmarkMemory measures the memory of a peer: its entry, its share of the snapshot
// and what is remembered of it once it is removed.
func BenchmarkMemory(b *testing.B) {
	for _, n := range sizes[1:] {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heapAlloc()
				bench := populated(b, n)
				b.ReportMetric(float64(heapAlloc()-before)/float64(n), "B/peer")
				runtime.KeepAlive(bench)
			}
		})
	}
}

func heapAlloc() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkChange measures one change of a table: a peer moves to another queue pair,
// and the data path gets a snapshot with it.
func BenchmarkChange(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := populated(b, n).table
			all := slices.Collect(maps.Values(t.peers.live.byEndpoint))
			epoch, i := t.view.epoch, 0
			b.ReportAllocs()
			for b.Loop() {
				p := all[i%n]
				t.peers.move(p, endpoint{p.gid, p.qpn + 1})
				t.view.urgent()
				t.view.publish()
				t.step.out = t.step.out[:0]
				i++
			}
			if made := t.view.epoch - epoch; made != uint64(i) {
				b.Fatalf("%d snapshots of %d changes", made, i)
			}
		})
	}
}

// BenchmarkPeers measures the list of 10,000 peers for an operator.
func BenchmarkPeers(b *testing.B) {
	const n = 10_000
	t := populated(b, n).table
	for b.Loop() {
		t.Peers()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/peer")
}
