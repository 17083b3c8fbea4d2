package neigh

import (
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// knownBench returns a bench whose host sends data to B.
func knownBench(tb testing.TB) *bench {
	b := attachedBench(tb, Config{})
	b.meet(peerB, ipB)
	b.ready(b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB))))
	b.advance(publishPause * 10)
	return b
}

func TestSnapshotLookups(t *testing.T) {
	b := knownBench(t)
	s := b.snap
	if d, _, ok := s.Unicast(b.macOf(peerB)); !ok || d != (hca.UDDest{AH: d.AH, QPN: peerB.qpn, QKey: 0x0b1b}) || d.AH.(*fakeAH).name != "ah1" {
		t.Errorf("Unicast: %v, %v, want B with its handle", d, ok)
	}
	if _, _, ok := s.Unicast(ipoib.MAC{2, 9, 9, 9, 9, 9}); ok {
		t.Error("Unicast of an unknown MAC")
	}
	if d, ok := s.Group(ipoib.GroupMGID(2, 0xffff, ip("224.0.0.251"))); !ok || d != broadcast {
		t.Errorf("Group: %v, %v, want the broadcast destination", d, ok)
	}
	if !s.Self(selfEnd.key()) || s.Self(endpoint{selfEnd.gid, selfEnd.qpn + 1}.key()) || s.Self(peerB.key()) {
		t.Error("Self is wrong")
	}
	if !s.FromHost(ownMAC) || s.FromHost(ipoib.MAC{}) || s.FromHost(b.macOf(peerB)) {
		t.Error("FromHost is wrong")
	}
}

// A peer is in use once the host has sent data to it, also by a handle that was made for an answer, and once the
// next snapshot shows that.
func TestSnapshotShowsPeersInUse(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	if b.snap.InUse(peerB.key()) {
		t.Error("in use before any data")
	}
	b.ready(b.step(hostARP(ownMAC, b.macOf(peerB), 2, ipA, ipB)))
	b.advance(time.Second)
	if b.snap.InUse(peerB.key()) {
		t.Error("in use after an answer")
	}
	if _, _, ok := b.snap.Unicast(b.macOf(peerB)); !ok {
		t.Fatal("no handle")
	}
	b.advance(markInterval + 2*latePause)
	if !b.snap.InUse(peerB.key()) || b.snap.InUse(endpoint{peerB.gid, peerB.qpn + 1}.key()) {
		t.Error("after data: the peer is not in use, or another queue pair of its GID is")
	}
}

// TestZeroSnapshot: the zero snapshot, with which the data path starts.
func TestZeroSnapshot(t *testing.T) {
	s := new(Snapshot)
	_, _, unicast := s.Unicast(ipoib.MAC{})
	_, group := s.Group(hca.GID{})
	if unicast || group || s.FromHost(ipoib.MAC{}) || s.Self(hca.UDSource{}) || s.InUse(hca.UDSource{}) || s.Epoch() != 0 {
		t.Error("the zero snapshot contains a peer")
	}
	if mac, bytes := s.PeerMAC(peerB.key()); mac != plainMAC(peerB.gid) || bytes != nil {
		t.Error("the zero snapshot's PeerMAC is not the plain MAC")
	}
}

// TestPeerMACAvoidsTheHost: PeerMAC is total and never returns the host's own
// MAC.
func TestPeerMACAvoidsTheHost(t *testing.T) {
	b := newBench(t, Config{})
	b.step(HostMAC{plainMAC(peerB.gid)})
	if got, bytes := b.snap.PeerMAC(peerB.key()); got != rehashedMAC(peerB.gid, peerB.qpn, 1) || bytes != nil {
		t.Errorf("MAC %v, want the first rehash", got)
	}
	b.step(attachedAt(selfEnd))
	b.meet(peerB, ipB)
	if got, _ := b.snap.PeerMAC(peerB.key()); got != b.macOf(peerB) {
		t.Errorf("the table gave %v", got)
	}
}

// TestOldSnapshotMarksUse: a data path that still uses an old snapshot keeps
// its peers alive.
func TestOldSnapshotMarksUse(t *testing.T) {
	b := knownBench(t)
	old := b.snap
	b.meet(peerC, ipC)
	for range 50 {
		b.advance(time.Minute)
		old.Unicast(plainMAC(peerB.gid))
	}
	if b.table.peers.live.byEndpoint[peerB] == nil {
		t.Error("a busy peer was removed")
	}
	b.advance(usedIdle + sweepInterval)
	if b.table.peers.live.byEndpoint[peerB] != nil {
		t.Error("an idle peer was not removed")
	}
}

func TestSnapshotLookupsDoNotAllocate(t *testing.T) {
	b := knownBench(t)
	s, mac := b.snap, b.macOf(peerB)
	stranger, selfIP := gidOf("203.0.113.1"), ip(ipA)
	if n := testing.AllocsPerRun(100, func() {
		s.Unicast(mac)
		s.Unicast(ownMAC)
		s.Group(stranger)
		s.PeerMAC(peerB.key())
		s.PeerMAC(hca.UDSource{GID: stranger, QPN: 5})
		s.StationMAC(selfIP)
		s.FromHost(ownMAC)
		s.Self(hca.UDSource{GID: stranger, QPN: 5})
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestPublishRate: changes that the slow path can bridge are published almost at once,
// unless they are all in one shard, as an attacker can arrange. Then they are published
// as often as copyPause allows.
func TestPublishRate(t *testing.T) {
	const peers, each = 1000, 2 * publishPause
	for _, c := range []struct {
		name string
		at   func(i int) endpoint
	}{
		{"in all shards", func(i int) endpoint { return endpoint{hca.GID{0: 0x20, 14: byte(i >> 8), 15: byte(i)}, 9} }},
		{"in one shard", func(i int) endpoint { return endpoint{hca.GID{0: 0x20, 9: byte(i >> 8), 10: byte(i)}, 9} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := knownBench(t)
			p := &player{bench: b}
			start, copied, late := b.snap.Epoch(), 0, 0
			for i := range peers {
				before := b.snap.Epoch()
				e := c.at(i)
				key := e.key()
				shard := shardOf(&key)
				p.quickStep(fabricARP(e, ipoib.ARPRequest, ipC, ipC, true))
				p.quickStep(hostIP(ownMAC, b.macOf(e), ip(ipA), ip(ipC)))
				if b.snap.Epoch() == before {
					late++
				} else {
					copied += len(b.snap.sources.maps[shard]) - 1
				}
				b.now = b.now.Add(each)
			}
			made := b.snap.Epoch() - start
			t.Logf("%d snapshots of %d changes, %d peers copied", made, peers, copied)
			if most := int(peers * each / copyPause); copied > most {
				t.Errorf("%d peers were copied, want %d at most", copied, most)
			}
			if spread := c.name == "in all shards"; spread && late > 0 || !spread && late < peers/2 {
				t.Errorf("%d of %d changes were not published at once", late, peers)
			}
		})
	}
}

func BenchmarkUnicast(b *testing.B) {
	bench := knownBench(b)
	mac := bench.macOf(peerB)
	for b.Loop() {
		bench.snap.Unicast(mac)
	}
}

func BenchmarkPeerMACOfStranger(b *testing.B) {
	s, gid := new(Snapshot), gidOf("203.0.113.1")
	for b.Loop() {
		s.PeerMAC(hca.UDSource{GID: gid, QPN: 5})
	}
}
