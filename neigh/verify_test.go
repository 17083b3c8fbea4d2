package neigh

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// asks returns the targets of the ARP requests in actions, in order.
func asks(actions []Action) (targets []netip.Addr) {
	for _, a := range actions {
		s, ok := a.(SendFabric)
		if !ok || s.Dest != broadcast {
			continue
		}
		typ, body, _ := ipoib.ParseHeader(s.Msg)
		if typ != ipoib.EtherTypeARP {
			continue
		}
		if arp, err := ipoib.ParseARP(body); err == nil && arp.SPA != arp.TPA {
			targets = append(targets, arp.TPA)
		}
	}
	return targets
}

// TestRequestsStartOnceTheHostHasAnAddress: while the host has no address, the table can
// send no requests for a silent peer, and counts none. It sends them within 2 s of the
// host's first address.
func TestRequestsStartOnceTheHostHasAnAddress(t *testing.T) {
	b := talkingBench(t, 1)
	mac := b.macOf(numbered(0))
	b.step(HostAddrs{})
	send := func() { b.snap.Unicast(mac) }
	if out := asks(b.pass(time.Minute, 100*time.Millisecond, send)); len(out) != 0 {
		t.Fatalf("requests for %v, want none", out)
	}
	if n := b.table.Stats().Silences; n != 0 {
		t.Errorf("%d silences counted without a request", n)
	}
	b.step(given(ip(ipA)))
	if got := asks(b.pass(2*silenceLimit, 100*time.Millisecond, send)); fmt.Sprint(got) != "[10.9.0.0]" {
		t.Errorf("requests for %v within 2 s of the new address, want [10.9.0.0]", got)
	}
}

// TestAddressesWithoutASourceLeaveRoomForOthers: addresses for which the host has no
// source do not use up the requests for a peer.
func TestAddressesWithoutASourceLeaveRoomForOthers(t *testing.T) {
	b := talkingBench(t, 1)
	for i := range maxAskedIPs {
		m := nd(ipoib.NDNeighborAdvert, ip(llB), ip("ff02::1"), ip(fmt.Sprintf("2001:db8::%d", i+1)), ipoibLink(2, numbered(0)))
		b.step(fabricND(numbered(0), m))
	}
	b.snap.Unicast(b.macOf(numbered(0)))
	if got := asks(b.advance(2 * silenceLimit)); fmt.Sprint(got) != "[10.9.0.0]" {
		t.Errorf("requests for %v, want [10.9.0.0]", got)
	}
}

// TestLatestClaimIsAskedForFirst: when the rate allows only one more request, it is for
// the address that was claimed last.
func TestLatestClaimIsAskedForFirst(t *testing.T) {
	b := talkingBench(t, 1)
	b.meet(numbered(0), "10.8.0.1")
	b.snap.Unicast(b.macOf(numbered(0)))
	b.advance(silenceLimit)
	for b.table.silent.rate.done < maxAskRate-1 {
		b.table.silent.rate.allow(b.now, maxAskRate)
	}
	if got := asks(b.advance(silenceLimit / 2)); fmt.Sprint(got) != "[10.8.0.1]" {
		t.Errorf("requests for %v with one request left, want [10.8.0.1], the latest claim", got)
	}
}

// TestSilentPeersAndStraysDoNotDelayResolutions: when the rates of requests for silent
// peers and of notices are exhausted, an address that the host needs is still requested
// at once.
func TestSilentPeersAndStraysDoNotDelayResolutions(t *testing.T) {
	b := talkingBench(t, 100)
	for i := range 100 {
		b.snap.Unicast(b.macOf(numbered(i)))
	}
	b.advance(silenceLimit + silenceLimit/2)
	for i := range 10 * maxNoticeRate {
		b.step(Stray{numbered(1000 + i).gid, 9})
	}
	if b.table.silent.rate.left(b.now, maxAskRate) || b.table.notices.rate.left(b.now, maxNoticeRate) {
		t.Fatal("a rate is not exhausted, so the test proves nothing")
	}
	if got := asks(b.step(hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), ip("10.0.0.9")))); fmt.Sprint(got) != "[10.0.0.9]" {
		t.Errorf("requests for %v, want [10.0.0.9]", got)
	}
	if out := b.step(Stray{}); len(out) != 0 {
		t.Errorf("actions %v, want none", out)
	}
	b.meet(peerB, ipB)
	if out := b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB))); len(out) != 1 {
		t.Errorf("data to an honest peer: actions %v, want CreateAH", out)
	}
}

// TestPeersThatAnswerAreNotAskedAfterRecovery: the QP is detached and attached again,
// with the same address or another one, between a message and its answer, and the handle
// takes some time. A peer that answers is not verified. When it falls silent, it is
// verified within 2 s.
func TestPeersThatAnswerAreNotAskedAfterRecovery(t *testing.T) {
	for _, self := range []endpoint{selfEnd, {selfEnd.gid, selfEnd.qpn + 1}} {
		for late := time.Duration(0); late < 3*silenceLimit; late += 50 * time.Millisecond {
			b := talkingBench(t, 1)
			mac, e := b.macOf(numbered(0)), numbered(0)
			b.snap.Unicast(mac) // marks a message that the QP no longer sends
			b.step(Detached{})
			b.advance(300 * time.Millisecond)
			b.step(attachedAt(self))
			b.advance(silenceLimit / 2)
			out := b.step(hostIP(ownMAC, mac, ip(ipA), ip("10.9.0.0")))
			b.advance(late)
			b.ready(out)
			b.advance(200 * time.Millisecond)
			b.snap.PeerMAC(e.key())
			b.advance(3 * silenceLimit)
			if n := b.table.Stats().Silences; n != 0 {
				t.Errorf("self %v, handle after %v: %d silences counted, want none", self, late, n)
			}
			got := asks(b.pass(2*silenceLimit, 100*time.Millisecond, func() { b.snap.Unicast(mac) }))
			if fmt.Sprint(got) != "[10.9.0.0]" {
				t.Errorf("self %v, handle after %v: requests for %v after a silence", self, late, got)
			}
		}
	}
}

// TestPeerHeardByARPAloneIsNotAsked: a peer that sends no data, such as a mere receiver,
// is not verified as long as its ARP arrives within a second of each message to it.
func TestPeerHeardByARPAloneIsNotAsked(t *testing.T) {
	b := talkingBench(t, 1)
	mac := b.macOf(numbered(0))
	for range 100 {
		b.pass(silenceLimit-markInterval, 50*time.Millisecond, func() { b.snap.Unicast(mac) })
		b.step(fabricARP(numbered(0), ipoib.ARPRequest, "10.9.0.0", ipA, true))
	}
	if n := b.table.Stats().Silences; n != 0 {
		t.Errorf("%d silences counted, want none", n)
	}
}

// TestBridgeThatAnswersIsNotAsked: if many addresses are behind one peer, a message from
// one of them counts for all.
func TestBridgeThatAnswersIsNotAsked(t *testing.T) {
	b := talkingBench(t, 1)
	mac, e := b.macOf(numbered(0)), numbered(0)
	for i := range maxIPsUsed {
		b.meet(e, fmt.Sprintf("10.8.0.%d", i))
	}
	for range 100 {
		b.pass(silenceLimit/2, 50*time.Millisecond, func() { b.snap.Unicast(mac) }) // to all of them
		b.snap.PeerMAC(e.key())                                                     // from one
	}
	if n := b.table.Stats().Silences; n != 0 {
		t.Errorf("%d silences counted, want none", n)
	}
}

// TestForgedStraysDoNotCrowdOutOthers: an attacker invents as many senders as the rate
// admits, for ten minutes. Every new sender gets its notice, and the table remembers a
// bounded number of them.
func TestForgedStraysDoNotCrowdOutOthers(t *testing.T) {
	b := attachedBench(t, Config{})
	p := player{bench: b}
	for i := range int(10*time.Minute/time.Second) * maxNoticeRate {
		before := b.table.Stats().Notices
		p.quickStep(Stray{numbered(i).gid, 9})
		if b.table.Stats().Notices != before+1 {
			t.Fatalf("sender %d got no notice", i)
		}
		b.now = b.now.Add(time.Second/maxNoticeRate + time.Nanosecond)
	}
	if err := b.table.check(); err != nil {
		t.Error(err)
	}
}

// TestNoticesWaitForFewHandles: while the worker is busy, notices wait for at most
// maxAnswerAHs handles. Strays without a handle are counted.
func TestNoticesWaitForFewHandles(t *testing.T) {
	b := attachedBench(t, Config{})
	asked := 0
	for i := range 1000 { // in 100 s
		for _, a := range b.step(Stray{numbered(i).gid, 9}) {
			if _, ok := a.(CreateAH); ok {
				asked++
			}
		}
		b.now = b.now.Add(100 * time.Millisecond)
	}
	if asked != maxAnswerAHs {
		t.Errorf("%d handles requested, want %d", asked, maxAnswerAHs)
	}
	if n := b.table.Stats().StraysLimited; n != 1000-maxAnswerAHs {
		t.Errorf("%d strays refused, want %d", n, 1000-maxAnswerAHs)
	}
}

// TestNoticesYieldToPeers: while maxAnswerAHs handles of peers are being created, no
// notice requests another handle.
func TestNoticesYieldToPeers(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range maxAnswerAHs {
		addr := netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})
		b.meet(numbered(i), addr.String())
		b.step(hostIP(ownMAC, b.macOf(numbered(i)), ip(ipA), addr))
	}
	if out := b.step(Stray{peerB.gid, peerB.qpn}); len(out) != 0 {
		t.Errorf("actions %v, want none", out)
	}
	if n := b.table.Stats().StraysLimited; n != 1 {
		t.Errorf("%d strays refused, want 1", n)
	}
}

// TestOneGIDDoesNotTakeTheNotices: an attacker who invents queue pairs of one GID, with
// 20 strays a second, does not deprive other senders of notices.
func TestOneGIDDoesNotTakeTheNotices(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range 20 * 60 {
		b.ready(b.step(Stray{peerB.gid, hca.QPN(0x1000 + i)}))
		if i%20 == 19 {
			before := b.table.Stats().Notices
			b.ready(b.step(Stray{numbered(i).gid, 9}))
			if b.table.Stats().Notices != before+1 {
				t.Fatalf("the honest sender got no notice in second %d", i/20)
			}
		}
		b.now = b.now.Add(50 * time.Millisecond)
	}
}

// TestFirstNoticeIsOneMessage: a single datagram, whose sender may be forged, gets a
// single message in return. A sender that keeps sending gets the other addresses too.
func TestFirstNoticeIsOneMessage(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(given(ip(ipA), ip("10.0.0.7"), ip(llA)))
	b.advance(2 * time.Minute)
	for i, want := range []int{1, 3, 3} {
		sent := 0
		for _, a := range b.ready(b.step(Stray{peerB.gid, peerB.qpn})) {
			if _, ok := a.(SendFabric); ok {
				sent++
			}
		}
		if sent != want {
			t.Errorf("notice %d has %d messages, want %d", i+1, sent, want)
		}
		b.now = b.now.Add(5 * time.Second)
	}
}

// TestInventedPeersDoNotDelayAsks: the host sends to 1,000 peers that an attacker
// invented by ARP. A peer that has sent data and then falls silent is verified before
// them.
func TestInventedPeersDoNotDelayAsks(t *testing.T) {
	const invented = 1000
	b := talkingBench(t, 1)
	p := player{bench: b}
	macs := []ipoib.MAC{b.macOf(numbered(0))}
	for i := range invented {
		e, addr := numbered(i+1), netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})
		p.quickStep(fabricARP(e, ipoib.ARPRequest, addr.String(), ipA, true))
		p.quickStep(hostIP(ownMAC, b.macOf(e), ip(ipA), addr))
		macs = append(macs, b.macOf(e))
	}
	for i := range 4 * 60 {
		for j, mac := range macs {
			if j > 0 || i > 20 { // to the honest peer 5 s later than to the others
				b.snap.Unicast(mac)
			}
		}
		b.now = b.now.Add(markInterval)
		p.quickStep(nil)
		if asked := b.table.peers.live.byEndpoint[numbered(0)].silence.asked; !asked.IsZero() {
			if after := markInterval * time.Duration(i-20); after > 3*silenceLimit {
				t.Errorf("requested after %v, want at most %v", after, 3*silenceLimit)
			}
			return
		}
	}
	t.Error("no request within a minute")
}
