package neigh

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// The host's cache keeps entries forever while it has fewer than gc_thresh1 (128).
// So a frame for a removed peer must not go to another interface of that GID.
func TestMACOfAForgottenPeerGoesToNoOther(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	cached := b.macOf(peerB)
	b.ready(b.step(hostIP(ownMAC, cached, ip(ipA), ip(ipB))))
	b.advance(usedIdle + sweepInterval)
	other := endpoint{peerB.gid, peerB.qpn + 1}
	b.meet(other, ipC)
	b.ready(b.step(hostIP(ownMAC, b.macOf(other), ip(ipA), ip(ipC))))
	b.advance(time.Second)
	if d, _, ok := b.snap.Unicast(cached); ok && d.QPN == other.qpn {
		t.Errorf("a frame for %s at %v goes to the queue pair of %s", ipB, cached, ipC)
	}
}

// forgottenBench returns a bench that has removed B, to which the host had sent data, and
// B's MAC, which is still in the host's cache.
func forgottenBench(t *testing.T) (*bench, ipoib.MAC) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	mac := b.macOf(peerB)
	b.ready(b.step(hostIP(ownMAC, mac, ip(ipA), ip(ipB))))
	b.advance(usedIdle + sweepInterval)
	if len(b.table.peers.live.byEndpoint) != 0 {
		t.Fatal("B was not removed")
	}
	return b, mac
}

// A removed peer that returns gets its MAC back, even if other interfaces of its host
// were heard first.
func TestForgottenPeerGetsItsMACBack(t *testing.T) {
	restarted := endpoint{peerB.gid, 0x23}
	for _, c := range []struct {
		name   string
		at     endpoint
		claims []string
	}{
		{"at the same queue pair", peerB, []string{ipB}},
		{"at the same queue pair with another address", peerB, []string{ipC}},
		{"restarted", restarted, []string{ipB}},
		{"after a restart, with a probe first", restarted, []string{"0.0.0.0", ipB}},
	} {
		b, mac := forgottenBench(t)
		b.meet(endpoint{peerB.gid, 0x24}, "10.0.0.4")
		for _, addr := range c.claims {
			b.meet(c.at, addr)
		}
		if got := b.macOf(c.at); got != mac {
			t.Errorf("%s: B has MAC %v, want %v", c.name, got, mac)
		}
	}
}

// A peer whose MAC was a rehash gets that one back, not the plain one of its GID.
func TestForgottenPeerGetsItsRehashedMACBack(t *testing.T) {
	b := attachedBench(t, Config{})
	second := endpoint{peerB.gid, 0x24}
	b.meet(peerB, ipB)
	b.meet(second, ipC)
	mac := b.macOf(second)
	b.advance(heardIdle + sweepInterval)
	b.meet(endpoint{peerB.gid, 0x25}, ipC)
	if got := b.macOf(endpoint{peerB.gid, 0x25}); got != mac {
		t.Errorf("MAC %v, want %v", got, mac)
	}
}

// A packet for a network behind a removed router is not lost: the table resolves the
// router's address.
func TestFrameToAForgottenRouterResolvesTheRouter(t *testing.T) {
	b, mac := forgottenBench(t)
	out := b.step(hostIP(ownMAC, mac, ip(ipA), ip("198.51.100.9")))
	if len(out) != 1 {
		t.Fatalf("actions %v, want one", out)
	}
	if arp, err := ipoib.ParseARP(out[0].(SendFabric).Msg[ipoib.HeaderLen:]); err != nil || arp.TPA != ip(ipB) {
		t.Errorf("request for %v, %v; want %s", arp.TPA, err, ipB)
	}
	restarted := endpoint{peerB.gid, 0x23}
	sent := b.ready(b.step(fabricARP(restarted, ipoib.ARPReply, ipB, ipA, false)))
	if s, ok := sent[0].(SendFabric); !ok || s.Dest.QPN != restarted.qpn || b.macOf(restarted) != mac {
		t.Errorf("after the answer: %v", sent)
	}
}

// A peer's MAC is in the host's cache as soon as the host has answered the peer.
func TestMACOfAPeerThatWasOnlyAnsweredGoesToNoOther(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, false))
	mac := b.macOf(peerB)
	b.ready(b.step(hostARP(ownMAC, mac, ipoib.ARPReply, ipA, ipB)))
	b.advance(heardIdle + sweepInterval)
	other := endpoint{peerB.gid, peerB.qpn + 1}
	b.meet(other, ipC)
	if b.macOf(other) == mac {
		t.Errorf("the MAC of B went to %v", other)
	}
}

// Invented peers, at the GID of a removed peer and elsewhere, do not get its MAC and
// do not displace it from memory. The number of remembered peers stays within the
// bounds of the table; the bench checks that.
func TestFloodDoesNotDisplaceRememberedUsedPeers(t *testing.T) {
	b, mac := forgottenBench(t)
	for i := range 3 * DefaultMaxHeard {
		e := numbered(i)
		if i%2 == 0 {
			e = endpoint{peerB.gid, hca.QPN(0x1000 + i)}
		}
		b.table.Step(b.now, fabricARP(e, ipoib.ARPRequest, "0.0.0.0", ipA, true), nil)
		if b.table.peers.live.byMAC[mac] != nil {
			t.Fatalf("invented peer %d has the MAC of B", i)
		}
		b.now = b.now.Add(time.Millisecond)
	}
	if err := b.table.check(); err != nil {
		t.Fatal(err)
	}
	past := &b.table.peers.past
	t.Logf("remembered: %d heard, %d used, %d at the GID of B", past.heard.Len(), past.used.Len(), len(past.byGID[peerB.gid]))
	b.meet(endpoint{peerB.gid, 0x23}, ipB)
	if got := b.macOf(endpoint{peerB.gid, 0x23}); got != mac {
		t.Errorf("B came back with MAC %v, want %v", got, mac)
	}
}

// The host may adopt the MAC of a removed peer. Then the peer gets another one.
func TestForgottenPeerDoesNotGetTheHostsMAC(t *testing.T) {
	b, mac := forgottenBench(t)
	b.step(HostMAC{mac})
	b.meet(peerB, ipB)
	if b.macOf(peerB) == mac {
		t.Error("B has the MAC of the host")
	}
}

// Forged claims can move peers away from a queue pair, and those peers keep MACs that
// are rehashes of that queue pair. No matter how many there are, present and removed,
// the MAC of the next peer at that queue pair costs a few hashes.
func TestMACsOfMovedPeersDoNotMakeTheNextOneCostly(t *testing.T) {
	b := attachedBench(t, Config{})
	from := endpoint{peerB.gid, 0x1000}
	for i := range 3 * maxPeersPerGID {
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String()
		for _, e := range []endpoint{from, {from.gid, from.qpn + 1 + hca.QPN(i)}} {
			b.table.Step(b.now, fabricARP(e, ipoib.ARPRequest, addr, addr, true), nil)
			b.now = b.now.Add(500 * time.Microsecond)
		}
	}
	if err := b.table.check(); err != nil {
		t.Fatal(err)
	}
	tries := 0
	freeMAC(from.gid, from.qpn, uint32(b.now.UnixMicro()), func(m ipoib.MAC) bool { tries++; return b.table.peers.macTaken(m) })
	t.Logf("%d MACs tried", tries)
	if tries > 8 {
		t.Errorf("%d MACs tried, want 8 at most", tries)
	}
}

// After a restart of the daemon the kernel's cache still maps addresses to a MAC. An
// interface that claims other addresses of that kind does not get the MAC, no matter in
// which order the interfaces of that GID are heard.
func TestMACInTheKernelsCacheGoesToItsAddress(t *testing.T) {
	other := endpoint{peerB.gid, peerB.qpn + 1}
	for _, c := range []struct {
		name   string
		claims []string
		want   bool // it gets the MAC
	}{
		{"its address", []string{ipB}, true},
		{"an address of another kind", []string{llB}, true},
		{"none", []string{"0.0.0.0"}, true},
		{"another address", []string{ipC}, false},
		{"another address after a probe", []string{"0.0.0.0", ipC}, false},
	} {
		b := newBench(t, Config{})
		b.step(HostMAC{ownMAC})
		b.step(given(ip(ipA), ip(llA)))
		mac := plainMAC(peerB.gid)
		b.step(HostNeighbours{[]Neighbour{{ip(ipB), mac}}})
		b.step(attachedAt(selfEnd))
		for _, addr := range c.claims {
			if addr == llB {
				b.step(fabricND(other, nd(ipoib.NDNeighborAdvert, ip(llB), ip("ff02::1"), ip(llB), ipoibLink(2, other))))
				continue
			}
			b.meet(other, addr)
		}
		if got := b.macOf(other) == mac; got != c.want {
			t.Errorf("an interface that claims %s gets the MAC of %s: %v", c.name, ipB, got)
		}
	}
}
