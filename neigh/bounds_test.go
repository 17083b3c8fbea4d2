package neigh

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

func numbered(i int) endpoint {
	return endpoint{hca.GID{0: 0x20, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}, 9}
}

func wantDrops(t *testing.T, b *bench, why Reason, want uint64) {
	t.Helper()
	if got := b.table.Stats().Drops[why]; got != want {
		t.Errorf("%d dropped as %v, want %d", got, why, want)
	}
}

func TestKeptFramesPerPeer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	var asked []Action
	for range maxPeerFrames + 3 {
		asked = append(asked, b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB)))...)
	}
	wantDrops(t, b, DropKeptFrames, 3)
	if len(asked) != 1 {
		t.Fatalf("%d actions, want one CreateAH", len(asked))
	}
	if sent := b.ready(asked); len(sent) != maxPeerFrames+1 {
		t.Errorf("%d actions after AHReady, want %d frames and a snapshot", len(sent), maxPeerFrames)
	}
}

func TestKeptBytesInAll(t *testing.T) {
	b := attachedBench(t, Config{})
	frame := func(i int) []byte {
		f := hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})).Frame
		return append(f, make([]byte, 2000)...)
	}
	n := maxKeptBytes / len(frame(0))
	for i := range n + 2 {
		b.step(FromHost{frame(i / maxPeerFrames)})
	}
	wantDrops(t, b, DropKeptBytes, 2)
	b.advance(resolveTries * resolveInterval)
	wantDrops(t, b, DropUnresolved, uint64(n))
}

func TestResolutionsBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range maxResolutions + 5 {
		b.step(hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})))
	}
	wantDrops(t, b, DropResolveLimit, 5)
}

// TestHostAsksBounded: no matter how many addresses the host is resolving, the
// table sends at most maxHostAsks requests at once, and waits for no answer.
func TestHostAsksBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	var targets []netip.Addr
	for i := range maxHostAsks + 5 {
		targets = append(targets, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}))
	}
	if out := b.step(HostAsks{targets}); len(out) != maxHostAsks || b.table.Stats().Resolutions != 0 {
		t.Errorf("%d actions, %+v; want %d requests", len(out), b.table.Stats(), maxHostAsks)
	}
}

// TestAnswersToStrangersBounded: while the worker is busy, answers to heard
// peers wait for at most maxAnswerAHs handles; data still gets its handle.
func TestAnswersToStrangersBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range maxAnswerAHs + 7 {
		b.meet(numbered(i), ipC)
		b.step(hostARP(ownMAC, b.macOf(numbered(i)), ipoib.ARPReply, ipA, ipC))
	}
	wantDrops(t, b, DropAHLimit, 7)
	b.meet(peerB, ipB)
	if out := b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB))); len(out) != 1 {
		t.Errorf("data to an honest peer: %v", out)
	}
}

// TestBusyPeersStay: when the used class is full, busy peers stay, messages to
// a new peer are still sent, and idle peers make room after pressureIdle.
func TestBusyPeersStay(t *testing.T) {
	b := attachedBench(t, Config{MaxPeers: 6, MaxHeard: 2})
	talk := func(i int) {
		b.meet(numbered(i), ipC)
		b.ready(b.step(hostIP(ownMAC, b.macOf(numbered(i)), ip(ipA), ip(ipC))))
	}
	for i := range 6 {
		talk(i)
	}
	if s := b.table.Stats(); s.Used != 4 || s.Heard != 2 {
		t.Fatalf("%d used, %d heard, want 4 and 2", s.Used, s.Heard)
	}
	b.advance(pressureIdle / 2)
	b.snap.Unicast(b.macOf(numbered(0)))
	b.advance(pressureIdle / 2)
	talk(6)
	for i, want := range []bool{true, false, true} {
		if got := b.table.peers.live.byEndpoint[numbered(i)] != nil; got != want {
			t.Errorf("peer %d exists: %v, want %v", i, got, want)
		}
	}
}

// TestFloodLeavesMarkedPeers: a flood does not evict a heard peer that the data
// path has sent to since marks were last read.
func TestFloodLeavesMarkedPeers(t *testing.T) {
	b := attachedBench(t, Config{MaxPeers: 16, MaxHeard: 4})
	b.meet(peerB, ipB)
	b.ready(b.step(hostARP(ownMAC, b.macOf(peerB), ipoib.ARPReply, ipA, ipB)))
	b.advance(latePause)
	b.snap.Unicast(b.macOf(peerB))
	for i := range 100 {
		b.meet(numbered(i), ipC)
	}
	if p := b.table.peers.live.byEndpoint[peerB]; p == nil || !p.used {
		t.Errorf("entry of peer B: %+v, want a used peer", p)
	}
}

func TestHeardPeersGoSooner(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.advance(heardIdle + sweepInterval)
	if s := b.table.Stats(); s.Heard != 0 || s.Evicted != 0 {
		t.Errorf("statistics %+v, want no peers, and none evicted", s)
	}
	if at, ok := b.table.NextDeadline(); ok {
		t.Errorf("an empty table has the deadline %v", at)
	}
}

// TestPeersWithoutAddressGoSooner: a used peer is kept for a long time, but not if its addresses have moved
// to another interface of its host: then it goes at once, or if it still sends data, as a heard one.
func TestPeersWithoutAddressGoSooner(t *testing.T) {
	for _, sends := range []bool{false, true} {
		b := attachedBench(t, Config{})
		other := endpoint{peerB.gid, peerB.qpn + 1}
		b.meet(peerB, ipB)
		b.meet(other, ipC)
		for _, e := range []endpoint{peerB, other} {
			b.ready(b.step(hostARP(ownMAC, b.macOf(e), ipoib.ARPReply, ipA, ipB)))
			b.advance(latePause)
			b.snap.Unicast(b.macOf(e))
		}
		b.advance(markInterval)
		if s := b.table.Stats(); s.Used != 2 {
			t.Fatalf("%+v, want two used peers", s)
		}
		b.meet(other, ipB)
		if sends {
			b.snap.PeerMAC(peerB.key())
		}
		b.advance(doubtTries * doubtInterval)
		if stays := b.table.peers.live.byEndpoint[peerB] != nil; stays != sends {
			t.Errorf("sends: %t, stays: %t", sends, stays)
		}
		b.advance(heardIdle + sweepInterval)
		if b.table.peers.live.byEndpoint[peerB] != nil || b.table.peers.live.byEndpoint[other] == nil {
			t.Errorf("peers %v, want only %v", b.table.Peers(), other)
		}
	}
}

// TestBindingsPerPeer: the latest claims win; used peers may have more, unless there are many in all.
func TestBindingsPerPeer(t *testing.T) {
	b := knownBench(t)
	claim := func(e endpoint, from, to int) {
		for i := from; i < to; i++ {
			b.meet(e, fmt.Sprintf("10.%d.%d.%d", byte(e.qpn), i>>8, byte(i)))
		}
	}
	claim(peerB, 0, maxIPsUsed+8)
	claim(peerC, 0, maxIPsHeard+1)
	live := &b.table.peers.live
	used, heard := live.byEndpoint[peerB], live.byEndpoint[peerC]
	if len(used.ips) != maxIPsUsed || used.ips[0] != ip("10.34.0.8") {
		t.Errorf("used peer has %v", used.ips)
	}
	if len(heard.ips) != maxIPsHeard || heard.ips[0] != ip("10.51.0.1") {
		t.Errorf("heard peer has %v", heard.ips)
	}
	for i := range maxIPs {
		live.byIP[netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})] = heard
	}
	live.bind(ip("10.34.2.0"), used)
	if len(used.ips) != maxIPsFew {
		t.Errorf("used peer has %v while there are many", used.ips)
	}
}

func TestHostAddressesBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	var addrs []netip.Addr
	for i := range maxHostAddrs + 10 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}))
	}
	b.step(given(addrs...))
	for i := range maxIPsPerStation + 10 {
		b.step(hostARP(ownMAC, ipoib.Broadcast, ipoib.ARPRequest, fmt.Sprintf("10.3.0.%d", i+1), ipB))
	}
	if h := &b.table.host.stations; len(h.home.ips) != maxHostAddrs || len(h.own.ips) != maxIPsPerStation || h.own.ips[0] != ip("10.3.0.11") {
		t.Errorf("%d given, %d learnt from %v", len(h.home.ips), len(h.own.ips), h.own.ips[0])
	}
}

func TestHintsBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	var ev HostNeighbours
	for i := range maxHints + 100 {
		ev.Entries = append(ev.Entries, Neighbour{ip(ipB), ipoib.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}})
	}
	b.step(ev)
	if n := len(b.table.peers.hints); n != maxHints {
		t.Errorf("%d hints, want %d", n, maxHints)
	}
}

// TestConfigRange: every configuration leaves room for both classes.
func TestConfigRange(t *testing.T) {
	for _, bounds := range [][2]int{{}, {1, 1}, {2, 9}, {-1, -1}, {100, 0}, {0, 5000}} {
		c := Config{MaxPeers: bounds[0], MaxHeard: bounds[1]}
		got := c.normal()
		if got.MaxHeard < 1 || got.MaxPeers-got.MaxHeard < 1 {
			t.Errorf("%+v becomes %+v, want room for both classes", c, got)
		}
	}
	if (Config{}).normal() != (Config{MaxPeers: DefaultMaxPeers, MaxHeard: DefaultMaxHeard}) {
		t.Error("defaults")
	}
}

// TestFloodFromOneGID: the cost of a message does not grow with the flood. 100,000
// messages from invented peers at one GID, where every MAC is a rehash, use
// bounded memory and bounded work: each message costs at most a few hashes.
func TestFloodFromOneGID(t *testing.T) {
	b := attachedBench(t, Config{})
	var out []Action
	const messages, each = 100_000, 10 * time.Microsecond
	published := 0 // peers, in all snapshots
	for i := range messages {
		e := endpoint{peerB.gid, hca.QPN(i + 2)}
		out = b.table.Step(b.now, fabricARP(e, ipoib.ARPRequest, "0.0.0.0", ipA, true), out[:0])
		if _, ok := out[len(out)-1].(Publish); ok {
			published += b.table.Stats().Heard
		}
		b.now = b.now.Add(each)
	}
	most := int(messages*each/latePause+1) * maxPeersPerGID
	if s := b.table.Stats(); s.Heard != maxPeersPerGID || s.AHs != 0 || published > most {
		t.Errorf("snapshots of %d peers, want at most %d; %+v", published, most, s)
	}
	if err := b.table.check(); err != nil {
		t.Error(err)
	}
}
