package neigh

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// crowdedBench returns a bench with a full table. The host has sent data to all but
// DefaultMaxHeard of the peers. The steps are not checked, because a check costs
// O(peers).
func crowdedBench(tb testing.TB) *bench {
	b := attachedBench(tb, Config{})
	p := player{bench: b}
	for i := range DefaultMaxPeers {
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		p.quickStep(fabricARP(numbered(i), ipoib.ARPRequest, addr.String(), ipA, true))
		if i < DefaultMaxPeers-DefaultMaxHeard {
			p.quickStep(hostIP(ownMAC, p.macOf(numbered(i)), ip(ipA), addr))
		}
	}
	if s := b.table.Stats(); s.Heard+s.Used != DefaultMaxPeers {
		tb.Fatalf("%d heard, %d used, want %d together", s.Heard, s.Used, DefaultMaxPeers)
	}
	return b
}

// alternate returns a claim of one address by two queue pairs of one GID
// alternately.
func alternate(i int) FromFabric {
	e := endpoint{gidOf("203.0.113.9"), hca.QPN(0x700 + i%2)}
	return fabricARP(e, ipoib.ARPRequest, "10.0.0.77", "10.0.0.77", true)
}

// TestAlternatingClaimsAreCheap: two queue pairs of one GID claim one address
// alternately, 2,000 times a second. That costs 36 snapshots, and the last claim wins.
func TestAlternatingClaimsAreCheap(t *testing.T) {
	const perSecond = 2000
	b := crowdedBench(t)
	p := player{bench: b}
	b.now = b.now.Add(time.Second)
	start := b.snap.Epoch()
	for i := range perSecond {
		p.quickStep(alternate(i))
		b.now = b.now.Add(time.Second / perSecond)
	}
	made := b.snap.Epoch() - start
	const most = uint64(time.Second/latePause) + maxUrgentReturns
	t.Logf("%d snapshots in a second of %d claims, %d at most", made, perSecond, most)
	if made > most {
		t.Errorf("%d snapshots, want %d at most", made, most)
	}
	if b.table.peers.live.byIP[ip("10.0.0.77")].qpn != 0x701 {
		t.Error("the last claim did not win")
	}
}

// TestLoneRestartIsPublishedAtOnce: the bounds on floods do not delay the claim of one
// restarted peer.
func TestLoneRestartIsPublishedAtOnce(t *testing.T) {
	b := knownBench(t)
	b.advance(time.Second)
	back := endpoint{peerB.gid, peerB.qpn + 1}
	b.meet(back, ipB)
	if d, _, ok := b.snap.Unicast(b.macOf(back)); !ok || d.QPN != back.qpn {
		t.Errorf("the data path sends to %v, %v", d, ok)
	}
}

// BenchmarkAlternatingClaims measures the cost of one claim in a full table, at 2,000
// claims a second.
func BenchmarkAlternatingClaims(b *testing.B) {
	bench := crowdedBench(b)
	p := player{bench: bench}
	i := 0
	for b.Loop() {
		p.quickStep(alternate(i))
		bench.now = bench.now.Add(500 * time.Microsecond)
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*2000/1e7, "%core@2000/s")
}

// TestPeersPerGID: one GID gets at most maxPeersPerGID peers, no matter which
// addresses they claim and how often the host sends to them. Its own oldest peers
// make room, not those of another GID.
func TestPeersPerGID(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	for i := range 3 * maxPeersPerGID {
		e := endpoint{peerC.gid, hca.QPN(0x1000 + i)}
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		b.meet(e, addr.String())
		b.ready(b.step(hostIP(ownMAC, b.macOf(e), ip(ipA), addr)))
		b.now = b.now.Add(time.Millisecond)
	}
	if got := len(b.table.peers.live.byGID[peerC.gid]); got != maxPeersPerGID {
		t.Errorf("%d peers of one GID, want %d", got, maxPeersPerGID)
	}
	if s := b.table.Stats(); s.Heard+s.Used != maxPeersPerGID+1 || s.AHs != maxPeersPerGID {
		t.Errorf("%d heard, %d used, %d handles", s.Heard, s.Used, s.AHs)
	}
	for i, want := range map[int]bool{0: false, 2*maxPeersPerGID - 1: false, 2 * maxPeersPerGID: true, 3*maxPeersPerGID - 1: true} {
		if got := b.table.peers.live.byEndpoint[endpoint{peerC.gid, hca.QPN(0x1000 + i)}] != nil; got != want {
			t.Errorf("peer %d of the GID exists: %v", i, got)
		}
	}
	if b.table.peers.live.byEndpoint[peerB] == nil {
		t.Error("a peer of another GID was evicted")
	}
}

// TestBusyPeerOutlivesItsGIDsFlood: when a GID has the maximum number of peers, heard
// peers are evicted first, the longest idle first.
func TestBusyPeerOutlivesItsGIDsFlood(t *testing.T) {
	b := knownBench(t)
	for i := range 5 * maxPeersPerGID {
		b.snap.Unicast(b.macOf(peerB))
		b.meet(endpoint{peerB.gid, hca.QPN(0x1000 + i)}, ipC)
	}
	if p := b.table.peers.live.byEndpoint[peerB]; p == nil || !p.used {
		t.Errorf("the busy peer: %+v", p)
	}
}

// TestRedirectNamesOneTarget: a Redirect creates peers for its sender and its target
// only, however many options it has.
func TestRedirectNamesOneTarget(t *testing.T) {
	const many = 78
	target := endpoint{gidOf("198.51.100.1"), 0x500}
	for _, c := range []struct {
		name    string
		options []byte
		why     Reason
		peers   int
	}{
		{"one target", ipoibLink(2, target), NumReason, 2},
		{"many targets", nil, DropBadND, 0},
		{"one target and many sources", ipoibLink(2, target), DropUnmapped, 2},
	} {
		b := attachedBench(t, Config{})
		m := nd(ipoib.NDRedirect, ip(llB), ip(llA), ip("fe80::c"), c.options)
		for i := range many {
			switch c.why {
			case DropBadND:
				m.options = append(m.options, ipoibLink(2, numbered(i))...)
			case DropUnmapped:
				m.options = append(m.options, ipoibLink(1, numbered(i))...)
			default:
			}
		}
		b.step(fabricND(peerB, m))
		if got := len(b.table.peers.live.byEndpoint); got != c.peers {
			t.Errorf("%s: %d peers, want %d", c.name, got, c.peers)
		}
		if c.why != NumReason {
			wantDrops(t, b, c.why, 1)
		}
	}
}

// TestInventedPeersMakeFewSnapshots: when 2,000 new peers a second resolve the host's
// address and get its answer, a snapshot is published only every latePause, because the
// host sends no data to them.
func TestInventedPeersMakeFewSnapshots(t *testing.T) {
	const perSecond, heard = 2000, 1000
	b := attachedBench(t, Config{MaxHeard: heard})
	p := player{bench: b}
	start := b.snap.Epoch()
	for i := range perSecond {
		p.quickStep(fabricARP(numbered(i), ipoib.ARPRequest, ipB, ipA, false))
		p.quickStep(hostARP(ownMAC, p.macOf(numbered(i)), ipoib.ARPReply, ipA, ipB))
		b.now = b.now.Add(time.Second / perSecond)
	}
	const most = uint64(time.Second/latePause) + 1
	if made := b.snap.Epoch() - start; made > most {
		t.Errorf("%d snapshots, want %d at most", made, most)
	}
	if s := b.table.Stats(); s.Heard != heard {
		t.Errorf("%d peers heard, want %d", s.Heard, heard)
	}
}

// TestFirstDataIsPublishedAtOnce: a peer is published as soon as the host sends data to
// it, even if its snapshot could wait until then.
func TestFirstDataIsPublishedAtOnce(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.ready(b.step(hostARP(ownMAC, b.macOf(peerB), ipoib.ARPReply, ipA, ipB)))
	b.now = b.now.Add(time.Millisecond)
	b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB)))
	if _, _, ok := b.snap.Unicast(b.macOf(peerB)); !ok {
		t.Error("the data path does not know the peer")
	}
}

// BenchmarkInventedPeers measures the cost of one peer that resolves the host's
// address and gets its answer, at 2,000 a second, when the table is full of such
// peers.
func BenchmarkInventedPeers(b *testing.B) {
	bench := attachedBench(b, Config{})
	p := player{bench: bench}
	p.flood(2 * DefaultMaxHeard)
	i, epoch := 0, bench.snap.Epoch()
	for b.Loop() {
		e := numbered(i)
		p.quickStep(fabricARP(e, ipoib.ARPRequest, ipB, ipA, false))
		p.quickStep(hostARP(ownMAC, p.macOf(e), ipoib.ARPReply, ipA, ipB))
		bench.now = bench.now.Add(500 * time.Microsecond)
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*2000/1e7, "%core@2000/s")
	b.ReportMetric(float64(bench.snap.Epoch()-epoch)/float64(b.N)*2000, "snapshots/s")
}
