package neigh

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// The LIDs of the ports of the test peers, with two path bits.
const (
	testLMC = 2
	selfLID = hca.LID(0x40)
	lidB    = hca.LID(0x44)
	lidC    = hca.LID(0x48)
)

// subnetBench is attachedBench at a port of an InfiniBand subnet.
func subnetBench(tb failer) *bench {
	b := newBench(tb, Config{})
	b.step(HostMAC{ownMAC})
	b.step(given(ip(ipA), ip(llA)))
	b.step(attachedToSubnet())
	b.advance(announceTimes[len(announceTimes)-1])
	return b
}

func attachedToSubnet() Attached {
	ev := attachedAt(selfEnd)
	ev.LID, ev.LMC = selfLID, testLMC
	return ev
}

// at returns ev as it comes from a LID.
func (ev FromFabric) at(lid hca.LID) FromFabric {
	if ev.From.LID = lid; !ev.Multicast {
		ev.From.GID = hca.GID{}
	}
	return ev
}

func found(e endpoint, lid hca.LID) PathFound { return PathFound{e.gid, hca.UDPath{DLID: lid}} }

// meetInSubnet adds a peer that announces ipB from lidB.
func (b *bench) meetInSubnet(e endpoint) {
	b.tb.Helper()
	b.step(fabricARP(e, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
	b.step(found(e, lidB))
	b.advance(latePause)
}

// pathsAsked returns the GIDs that the actions request paths to.
func pathsAsked(actions []Action) (gids []hca.GID) {
	for _, a := range actions {
		if f, ok := a.(FindPath); ok {
			gids = append(gids, f.GID)
		}
	}
	return gids
}

// Every message that names its sender is a claim: it is delivered if the path to that GID leads to the sender's LID, and
// else refused. One without GRH that names no sender is refused even so, as long as no peer is known there.
func TestClaimsByKind(t *testing.T) {
	connected := fabricARP(peerB, ipoib.ARPReply, ipB, ipA, false)
	connected.Msg[ipoib.HeaderLen+8] |= 0x80 // the flags of the sender's address: connected mode
	dad := nd(ipoib.NDNeighborSolicit, ip("::"), ip("ff02::1:ff00:b"), ip(llB), nil)
	plain := func(src, dst string, multicast bool) FromFabric {
		to := ip(dst)
		return FromFabric{append(newMessage(etherTypeFor(to)), ipPacket(ip(src), to)...), peerB.key(), multicast}
	}
	rarp := fabricARP(peerB, 3, ipB, ipA, true)
	ipoib.PutHeader(rarp.Msg, ipoib.EtherTypeRARP)
	for _, c := range []struct {
		name  string
		ev    FromFabric
		names bool
	}{
		{"ARP request", fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, true), true},
		{"ARP reply", fabricARP(peerB, ipoib.ARPReply, ipB, ipA, false), true},
		{"ARP reply in connected mode", connected, true},
		{"RARP", rarp, true},
		{"NS", fabricND(peerB, nd(ipoib.NDNeighborSolicit, ip(llB), ip("ff02::1:ff00:a"), ip(llA), ipoibLink(1, peerB))), true},
		{"NS by unicast", fabricND(peerB, nd(ipoib.NDNeighborSolicit, ip(llB), ip(llA), ip(llA), ipoibLink(1, peerB))), true},
		{"NA", fabricND(peerB, nd(ipoib.NDNeighborAdvert, ip(llB), ip(llA), ip(llB), ipoibLink(2, peerB))), true},
		{"RS", fabricND(peerB, nd(ipoib.NDRouterSolicit, ip(llB), ip("ff02::2"), netip.Addr{}, ipoibLink(1, peerB))), true},
		{"RA", fabricND(peerB, nd(ipoib.NDRouterAdvert, ip(llB), ip("ff02::1"), netip.Addr{}, ipoibLink(1, peerB))), true},
		{"probe for a duplicate address, by its GRH", fabricND(peerB, dad), true},
		{"IP to a group, by its GRH", plain(ipB, "10.0.0.255", true), true},
		{"NA without an address", fabricND(peerB, nd(ipoib.NDNeighborAdvert, ip(llB), ip(llA), ip(llB), nil)), false},
		{"Redirect", fabricND(peerB, nd(ipoib.NDRedirect, ip(llB), ip(llA), ip("fe80::c"), ipoibLink(2, peerC))), false},
		{"IP", plain(ipB, ipA, false), false},
		{"echo", FromFabric{ipoib.Echo{ID: 1}.Message(56), peerB.key(), false}, false},
	} {
		for _, lid := range []hca.LID{lidB, lidC} {
			b := subnetBench(t)
			out := b.step(c.ev.at(lid))
			if !c.names {
				if len(out) != 0 {
					t.Errorf("%s: %v", c.name, out)
				}
				wantDrops(t, b, DropUnknownLID, 1)
				continue
			}
			if gids := pathsAsked(out); len(gids) != 1 || gids[0] != peerB.gid || len(out) != 1 {
				t.Errorf("%s: %v, want a request for the path to %v", c.name, out, peerB.gid)
			}
			if delivered := b.step(found(peerB, lidB+1)); lid == lidB {
				checkBearsMAC(t, b, peerB, only[SendHost](t, delivered).Frame)
			} else if len(delivered) != 0 {
				t.Errorf("%s from another port: %v", c.name, delivered)
			} else {
				wantDrops(t, b, DropForeignLID, 1)
			}
		}
	}
}

// Once the peer is known, messages that do not name their sender come from it.
func TestKnownByLID(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	for _, ev := range []FromFabric{
		fabricND(peerB, nd(ipoib.NDNeighborAdvert, ip(llB), ip(llA), ip(llB), nil)),
		{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), ip(ipA))...), peerB.key(), false},
		fabricND(peerB, nd(ipoib.NDNeighborSolicit, ip("::"), ip("ff02::1:ff00:b"), ip(llB), nil)),
	} {
		checkBearsMAC(t, b, peerB, only[SendHost](t, b.step(ev.at(lidB))).Frame)
		if out := b.step(endAt(ev, peerB.qpn+1).at(lidB)); pathsAsked(out) != nil || !ev.Multicast && len(out) != 0 {
			t.Errorf("from another queue pair of the port: %v", out)
		}
	}
	if s := b.table.Stats(); s.PathsAsked != 1 {
		t.Errorf("%d paths requested, want 1", s.PathsAsked)
	}
}

// endAt returns ev from another queue pair.
func endAt(ev FromFabric, qpn hca.QPN) FromFabric {
	ev.From.QPN = qpn
	return ev
}

// TestRefusedInSubnet: what is refused at once, without a request.
func TestRefusedInSubnet(t *testing.T) {
	arp := fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, true)
	own := fabricARP(selfEnd, ipoib.ARPRequest, ipA, ipA, true)
	zero := fabricARP(endpoint{hca.GID{}, peerB.qpn}, ipoib.ARPReply, ipB, ipA, false)
	group := fabricARP(endpoint{gidOf("ff12::1"), peerB.qpn}, ipoib.ARPReply, ipB, ipA, false)
	for _, c := range []struct {
		name string
		why  Reason
		ev   FromFabric
	}{
		{"a group's LID", DropBadSource, arp.at(0xc000)},
		{"QP1", DropBadSource, endAt(arp, hca.QPNGSI).at(lidB)},
		{"the QPN of groups", DropBadSource, endAt(arp, hca.QPNMulticast).at(lidB)},
		{"another QPN", DropForged, endAt(arp, peerB.qpn+1).at(lidB)},
		{"own message", DropOwn, own.at(selfLID)},
		{"own message without a name", DropOwn, endAt(FromFabric{Msg: append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipA), ip(ipB))...)}, selfEnd.qpn).at(selfLID)},
		{"our address from another port", DropForeignLID, own.at(lidB)},
		{"a zero GID", DropUnknownLID, zero.at(lidB)},
		{"a group's GID", DropBadSource, group.at(lidB)},
		{"malformed", DropUnknownLID, FromFabric{Msg: arp.Msg[:59], From: peerB.key()}.at(lidB)},
		{"no header", DropRunt, FromFabric{Msg: arp.Msg[:3], From: peerB.key()}.at(lidB)},
	} {
		b := subnetBench(t)
		if out := b.step(c.ev); len(out) != 0 {
			t.Errorf("%s: %v", c.name, out)
		}
		wantDrops(t, b, c.why, 1)
	}
}

// A message from an earlier queue pair of this port is our own for formerLife.
func TestFormerQueuePairInSubnet(t *testing.T) {
	b := subnetBench(t)
	ev := attachedToSubnet()
	ev.Self = endpoint{selfEnd.gid, 0x12}.addr()
	b.step(ev)
	late := fabricARP(selfEnd, ipoib.ARPRequest, ipA, ipA, true).at(selfLID)
	b.step(late)
	wantDrops(t, b, DropOwn, 1)
	b.advance(formerLife)
	if gids := pathsAsked(b.step(late)); len(gids) != 1 || gids[0] != selfEnd.gid {
		t.Errorf("after %v: paths to %v requested, want to our own port", formerLife, gids)
	}
}

// The claims that wait are applied in their order.
func TestClaimsAreAppliedInOrder(t *testing.T) {
	b := subnetBench(t)
	for i := range 5 {
		e := endpoint{peerB.gid, hca.QPN(0x100 + i%2)} // a claim may move the address to another queue pair
		b.step(fabricARP(e, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
		b.step(fabricARP(e, ipoib.ARPRequest, ipC, ipC, true).at(lidC))
	}
	frames := 0
	for i, a := range b.step(found(peerB, lidB)) {
		if s, ok := a.(SendHost); ok {
			frames++
			if f, _ := parseFrame(s.Frame); i < 4 && f.body()[17] != 2 {
				t.Errorf("frame %d claims %v", i, f.body()[14:18])
			}
		}
	}
	if owner := b.table.peers.live.byIP[ip(ipB)]; frames != 5 || owner == nil || owner.qpn != 0x100 {
		t.Errorf("%d frames, the address is at %+v, want 5, and at the last claimant", frames, owner)
	}
	wantDrops(t, b, DropForeignLID, 5)
}

// TestClaimsAreBounded: the claims of one port, and their requests, leave room for those of others.
func TestClaimsAreBounded(t *testing.T) {
	b := subnetBench(t)
	for i := range maxClaimsPerLID + 10 {
		b.step(fabricARP(endpoint{peerB.gid, hca.QPN(0x100 + i)}, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
	}
	wantDrops(t, b, DropClaimsFull, 10)
	if gids := pathsAsked(b.step(fabricARP(peerC, ipoib.ARPRequest, ipC, ipC, true).at(lidC))); len(gids) != 1 {
		t.Errorf("another port: paths to %v requested, want one", gids)
	}
	b.step(Detached{})
	wantDrops(t, b, DropDetached, maxClaimsPerLID+1)

	b = subnetBench(t)
	claim := func(i int, lid hca.LID) bool {
		return len(pathsAsked(b.step(fabricARP(numbered(i), ipoib.ARPRequest, ipB, ipB, true).at(lid)))) == 1
	}
	for i := range maxFindRate + 5 {
		if asked := claim(i, lidB); asked != (i < maxFindRate) {
			t.Fatalf("GID %d of one port: requested %t", i, asked)
		}
	}
	wantDrops(t, b, DropClaimsFull, 5)
	b.advance(time.Second)
	for i := range maxClaims {
		if i%maxFindRate == 0 {
			b.advance(time.Millisecond)
		}
		claim(1000+i, lidC+hca.LID(4*(i/maxFindRate)))
	}
	if s := b.table.Stats(); s.Kept != maxClaims || s.Drops[DropClaimsFull] != 5+maxFindRate {
		t.Errorf("%d claims kept, %d refused, want %d, and %d", s.Kept, s.Drops[DropClaimsFull], maxClaims, 5+maxFindRate)
	}

	b = subnetBench(t)
	long := fabricARP(peerB, ipoib.ARPRequest, ipB, ipB, true)
	long.Msg = append(long.Msg, make([]byte, maxClaimBytes-len(long.Msg))...)
	const most = maxSoughtBytes / maxClaimBytes
	for i := range most + 3 {
		b.step(long.at(lidB + hca.LID(4*(i%64))))
	}
	wantDrops(t, b, DropClaimsFull, 3)
	b.step(found(peerB, lidB))
	long.Msg = append(long.Msg, 0)
	b.advance(pathPause)
	b.step(long.at(lidC))
	wantDrops(t, b, DropClaimsFull, 4)
}

// TestPathsAreBounded: beyond maxPaths, claims request no more paths. Paths without a peer are forgotten.
func TestPathsAreBounded(t *testing.T) {
	b := subnetBench(t)
	for i := range maxPaths {
		e := numbered(i)
		b.table.lids.paths[e.gid] = &path{at: b.now}
	}
	e := numbered(maxPaths + 1)
	b.step(fabricARP(e, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
	wantDrops(t, b, DropClaimsFull, 1)
	b.advance(2 * sweepInterval)
	if n := len(b.table.lids.paths); n != 0 {
		t.Errorf("%d paths left", n)
	}
	b.meetInSubnet(e)
	b.advance(2 * sweepInterval)
	if n := len(b.table.lids.paths); n != 1 {
		t.Errorf("%d paths, want that of the peer", n)
	}
	b.advance(heardIdle + 2*sweepInterval)
	if n := len(b.table.lids.paths); n != 0 || len(b.table.peers.live.byLID) != 0 {
		t.Errorf("%d paths and %v after the peer", n, b.table.peers.live.byLID)
	}
}

// TestAnswersAfterDetached: an answer may come late, or never.
func TestAnswersAfterDetached(t *testing.T) {
	b := subnetBench(t)
	claim := fabricARP(peerB, ipoib.ARPRequest, ipB, ipB, true).at(lidB)
	b.step(claim)
	b.step(Detached{})
	if out := b.step(found(peerB, lidB)); len(out) != 0 {
		t.Errorf("late answer: %v", out)
	}
	b.step(found(peerC, lidC)) // was never requested
	b.step(attachedToSubnet())
	if out := b.step(claim); pathsAsked(out) != nil || len(out) == 0 {
		t.Errorf("the late answer does not count: %v", out)
	}
	if _, known := b.table.lids.to(peerC.gid); known {
		t.Error("a path without a user is known")
	}
	b.step(fabricARP(peerC, ipoib.ARPRequest, ipC, ipC, true).at(lidC))
	b.step(Detached{})
	b.step(attachedToSubnet())
	if gids := pathsAsked(b.step(fabricARP(peerC, ipoib.ARPRequest, ipC, ipC, true).at(lidC))); len(gids) != 1 {
		t.Errorf("after an answer that never came, paths to %v are requested, want one", gids)
	}
}

// TestLIDOfAnAnswer: only the LID of a port is a path, and its path bits do not count.
func TestLIDOfAnAnswer(t *testing.T) {
	for _, c := range []struct {
		dlid hca.LID
		why  Reason // NumReason: accepted
	}{
		{lidB, NumReason},
		{lidB + 3, NumReason},
		{lidB + 4, DropForeignLID},
		{0, DropNoPath},
		{3, DropNoPath},
		{0xc000, DropNoPath},
	} {
		b := subnetBench(t)
		b.step(fabricARP(peerB, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
		b.step(found(peerB, c.dlid))
		if known := b.table.peers.live.byEndpoint[peerB] != nil; known != (c.why == NumReason) {
			t.Errorf("DLID %v: peer known %t", c.dlid, known)
		}
		if c.why != NumReason {
			wantDrops(t, b, c.why, 1)
		}
	}
}

// sendTo has the host send an IP packet to a peer.
func (b *bench) sendTo(e endpoint, addr string) []Action {
	b.tb.Helper()
	return b.step(hostIP(ownMAC, b.macOf(e), ip(ipA), ip(addr)))
}

// TestHandleCarriesThePath: what the path record says reaches CreateAH unchanged.
func TestHandleCarriesThePath(t *testing.T) {
	b := subnetBench(t)
	path := hca.UDPath{DLID: lidB + 1, SL: 3, Rate: 7, HopLimit: 2, Traffic: 4, FlowLabel: 0x12345}
	b.step(fabricARP(peerB, ipoib.ARPRequest, ipB, ipB, true).at(lidB))
	b.step(PathFound{peerB.gid, path})
	if got := only[CreateAH](t, b.sendTo(peerB, ipB)); got != (CreateAH{1, peerB.gid, path}) {
		t.Errorf("%+v, want the path %+v", got, path)
	}
}

// TestHandleWithoutPath: a handle waits for the path, and is tried again like one that could not be created.
func TestHandleWithoutPath(t *testing.T) {
	b := restoredBench(t)
	for try := range ahTries {
		if try > 0 {
			if gids := pathsAsked(b.advance(ahBackoff << (try - 1))); len(gids) != 1 {
				t.Fatalf("try %d: paths to %v", try, gids)
			}
		}
		b.step(PathFailed{peerB.gid})
	}
	wantDrops(t, b, DropAHFailed, 1)
	b.advance(ahHoldoff)
	if gids := pathsAsked(b.sendTo(peerB, ipB)); len(gids) != 1 {
		t.Fatalf("after the pause: paths to %v", gids)
	}
	out := b.ready(b.step(found(peerB, lidB)))
	if only[SendFabric](t, out).Dest.QPN != peerB.qpn {
		t.Errorf("%v, want the packet", out)
	}
}

// restoredBench has a used peer of a former table, whose path is not known, and a packet for it.
func restoredBench(t *testing.T) *bench {
	b := newBench(t, Config{})
	b.step(Restored{Peers: []PeerInfo{{MAC: plainMAC(peerB.gid), GID: peerB.gid, QPN: peerB.qpn, IPs: []netip.Addr{ip(ipB)}, Used: true}}})
	b.step(HostMAC{ownMAC})
	b.step(given(ip(ipA)))
	if gids := pathsAsked(b.step(attachedToSubnet())); len(gids) != 1 || gids[0] != peerB.gid {
		t.Fatalf("paths to %v requested, want to the restored peer", gids)
	}
	b.sendTo(peerB, ipB)
	return b
}

// TestHandleOfRestoredPeer: its path proves nothing about a claim from another port.
func TestHandleOfRestoredPeer(t *testing.T) {
	b := restoredBench(t)
	b.step(fabricARP(peerB, ipoib.ARPRequest, ipC, ipC, true).at(lidC))
	if got := only[CreateAH](t, b.step(found(peerB, lidB))); got.Path.DLID != lidB {
		t.Errorf("%+v, want the handle by the path", got)
	}
	wantDrops(t, b, DropForeignLID, 1)
	if b.table.peers.live.byIP[ip(ipC)] != nil || b.table.peers.live.byLID[peerB.sourceAt(lidB, false)] == nil {
		t.Errorf("%v", b.table.Peers())
	}
}

// TestRenewalFails: a handle by a new path that cannot be created leaves the old one in use. The next answer repeats it,
// also if the path is the same as before.
func TestRenewalFails(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	b.ready(b.sendTo(peerB, ipB))
	b.advance(latePause)
	b.step(found(peerB, lidB+4)) // an answer without a request
	b.step(AHFailed{2, hca.ErrTimeout})
	if to, _, ok := b.snap.Unicast(b.macOf(peerB)); !ok || fmt.Sprint(to.AH) != "ah1" {
		t.Errorf("the data path sends to %v, %t", to.AH, ok)
	}
	out := b.step(found(peerB, lidB+4))
	if got := only[CreateAH](t, out); got.ID != 3 || got.Path.DLID != lidB+4 {
		t.Errorf("%+v, want the handle again", got)
	}
	b.ready(out)
	b.advance(latePause)
	if to, _, ok := b.snap.Unicast(b.macOf(peerB)); !ok || fmt.Sprint(to.AH) != "ah3" {
		t.Errorf("the data path sends to %v, %t", to.AH, ok)
	}
	if out := b.step(found(peerB, lidB+4)); len(out) != 0 {
		t.Errorf("the same path again: %v", out)
	}
}

// TestRedirectTargetInSubnet: the target of a Redirect is a peer whose path is requested when the host sends to it.
func TestRedirectTargetInSubnet(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	b.step(fabricND(peerB, nd(ipoib.NDRedirect, ip(llB), ip(llA), ip("fe80::c"), ipoibLink(2, peerC))).at(lidB))
	if gids := pathsAsked(b.sendTo(peerC, ipC)); len(gids) != 1 || gids[0] != peerC.gid {
		t.Fatalf("paths to %v requested, want to the target", gids)
	}
	b.ready(b.step(found(peerC, lidC)))
	b.advance(latePause)
	if mac, bytes := b.snap.PeerMAC(peerC.sourceAt(lidC, false)); bytes == nil || mac != b.macOf(peerC) {
		t.Errorf("the data path knows the target as %v, %t", mac, bytes != nil)
	}
}

// TestRedirectToKnownPort: the target is another queue pair of a port whose path is known. Its data has its MAC.
func TestRedirectToKnownPort(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	target := endpoint{peerB.gid, 0x99}
	b.step(fabricND(peerB, nd(ipoib.NDRedirect, ip(llB), ip(llA), ip("fe80::c"), ipoibLink(2, target))).at(lidB))
	b.advance(latePause)
	if mac, bytes := b.snap.PeerMAC(target.sourceAt(lidB, false)); bytes == nil || mac != b.macOf(target) {
		t.Errorf("the data path knows the target as %v, %t", mac, bytes != nil)
	}
}

// TestTwoGIDsOfAQueuePair: its messages come from the peer that was claimed last.
func TestTwoGIDsOfAQueuePair(t *testing.T) {
	b := subnetBench(t)
	alias := endpoint{peerC.gid, peerB.qpn}
	from := peerB.sourceAt(lidB, false)
	for _, e := range []endpoint{peerB, alias, peerB} {
		b.meetInSubnet(e)
		if mac, _ := b.snap.PeerMAC(from); mac != b.macOf(e) {
			t.Errorf("after the claim of %v its data has the MAC %v", e, mac)
		}
	}
	b.step(fabricARP(alias, ipoib.ARPRequest, ipC, ipC, true).at(lidB)) // the path is known
	b.advance(latePause)
	if mac, _ := b.snap.PeerMAC(from); mac != b.macOf(alias) {
		t.Errorf("after another claim of %v its data has the MAC %v", alias, mac)
	}
}

// TestOwnLIDIsAnnounced: peers learn a new LID of this host from its announcements. The paths from it stay.
func TestOwnLIDIsAnnounced(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	ev := attachedToSubnet()
	if out := b.step(ev); len(out) != 1 {
		t.Errorf("the same LID: %v, want only a snapshot", out)
	}
	ev.LID += 0x10
	if out := b.step(ev); len(out) != 3 {
		t.Errorf("another LID: %v, want an announcement of each address and a snapshot", out)
	}
	if !b.snap.Self(selfEnd.sourceAt(ev.LID, false)) || b.snap.Self(selfEnd.sourceAt(selfLID, false)) {
		t.Error("the data path has the former LID")
	}
	if _, known := b.table.lids.to(peerB.gid); !known {
		t.Error("the paths are forgotten")
	}
}

// TestStrayInSubnet: a path is needed for a notice, and is not requested for one.
func TestStrayInSubnet(t *testing.T) {
	b := subnetBench(t)
	if out := b.step(Stray{peerB.gid, peerB.qpn}); len(out) != 0 || b.table.Stats().StraysUnanswerable != 1 {
		t.Errorf("%v", out)
	}
	b.meetInSubnet(peerB)
	b.ready(b.sendTo(peerB, ipB))
	only[SendFabric](t, b.step(Stray{peerB.gid, peerB.qpn}))
}

// TestSnapshotByLID: the look-ups of the data path on InfiniBand.
func TestSnapshotByLID(t *testing.T) {
	b := subnetBench(t)
	b.meetInSubnet(peerB)
	byB := peerB.sourceAt(lidB, false)
	b.ready(b.sendTo(peerB, ipB))
	b.advance(latePause)
	withGRH := byB
	withGRH.GID = peerC.gid
	for _, from := range []hca.UDSource{byB, withGRH} {
		if mac, bytes := b.snap.PeerMAC(from); mac != b.macOf(peerB) || bytes == nil || !b.snap.InUse(from) || b.snap.Self(from) {
			t.Errorf("%+v: MAC %v, known %t", from, mac, bytes != nil)
		}
	}
	for _, from := range []hca.UDSource{peerB.sourceAt(lidC, true), endpoint{peerB.gid, peerB.qpn + 1}.sourceAt(lidB, true)} {
		mac, bytes := b.snap.PeerMAC(from)
		if bytes != nil || mac == b.macOf(peerB) || mac.IsMulticast() || mac.IsZero() || b.snap.InUse(from) {
			t.Errorf("a stranger at %+v: MAC %v, known %t", from, mac, bytes != nil)
		}
	}
	if !b.snap.Self(selfEnd.sourceAt(selfLID, false)) || b.snap.Self(selfEnd.sourceAt(lidB, true)) || (&Snapshot{}).Self(byB) {
		t.Error("the wrong sender is our own")
	}
	if n := testing.AllocsPerRun(100, func() { b.snap.PeerMAC(byB); b.snap.InUse(byB); b.snap.Self(byB) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	b.step(attachedAt(selfEnd)) // RoCE again
	if mac, bytes := b.snap.PeerMAC(byB); bytes != nil || mac == b.macOf(peerB) || len(b.table.lids.paths) != 0 {
		t.Errorf("on RoCE: MAC %v, known %t", mac, bytes != nil)
	}
}

func BenchmarkPeerMACByLID(b *testing.B) {
	bench := subnetBench(b)
	bench.meetInSubnet(peerB)
	from := peerB.sourceAt(lidB, false)
	b.ReportAllocs()
	for b.Loop() {
		bench.snap.PeerMAC(from)
	}
}
