package neigh

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"ipoibd/ud/ipoib"
)

// talkingBench returns a bench whose host exchanges data with n peers, from
// 10.9.0.0 on.
func talkingBench(tb testing.TB, n int) *bench {
	b := attachedBench(tb, Config{})
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		b.meet(numbered(i), addr.String())
		b.ready(b.step(hostIP(ownMAC, b.macOf(numbered(i)), ip(ipA), addr)))
	}
	b.advance(time.Second / 2)
	for i := range n {
		b.snap.PeerMAC(numbered(i).key())
	}
	b.advance(time.Second / 2)
	return b
}

// pass advances the time by d in steps and calls each before every step.
func (b *bench) pass(d, step time.Duration, each func()) (out []Action) {
	for end := b.now.Add(d); b.now.Before(end); {
		each()
		out = append(out, b.advance(step)...)
	}
	return out
}

// TestSilentPeerIsAskedForInTime: a peer that falls silent is verified after 1 s to 2 s,
// at whatever time between two readings of the marks this happens.
func TestSilentPeerIsAskedForInTime(t *testing.T) {
	earliest, latest := time.Hour, time.Duration(0)
	for range 200 {
		b := talkingBench(t, 1)
		mac, e := b.macOf(numbered(0)), numbered(0)
		b.pass(rand.N(2*time.Second), 10*time.Millisecond, func() {
			b.snap.Unicast(mac)
			b.snap.PeerMAC(e.key())
		})
		silent := b.now
		for b.table.Stats().Silences == 0 {
			b.pass(10*time.Millisecond, 10*time.Millisecond, func() { b.snap.Unicast(mac) })
			if b.now.Sub(silent) > 10*time.Second {
				t.Fatal("the silent peer was never requested")
			}
		}
		earliest, latest = min(earliest, b.now.Sub(silent)), max(latest, b.now.Sub(silent))
	}
	t.Logf("requested after %v to %v", earliest, latest)
	if earliest < silenceLimit || latest > 2*silenceLimit {
		t.Errorf("requested after %v to %v, want 1 s to 2 s", earliest, latest)
	}
}

// TestPeersThatAnswerAreNotAsked: a peer that answers each message of the host within
// half a second is not verified, regardless of the rhythm of the messages.
func TestPeersThatAnswerAreNotAsked(t *testing.T) {
	for range 200 {
		b := talkingBench(t, 1)
		mac, e := b.macOf(numbered(0)), numbered(0)
		for range 50 {
			b.snap.Unicast(mac)
			b.advance(rand.N(silenceLimit / 2))
			b.snap.PeerMAC(e.key())
			b.advance(rand.N(3 * silenceLimit))
		}
		if s := b.table.Stats(); s.Silences != 0 || s.Requests != 0 {
			t.Fatalf("%d silences, %d requests, want none", s.Silences, s.Requests)
		}
	}
}

// TestSilentPeersAreAskedForInTurn: when 100 peers fall silent together, the host sends
// at most maxAskRate requests in any second and verifies every peer.
func TestSilentPeersAreAskedForInTurn(t *testing.T) {
	const peers = 100
	b := talkingBench(t, peers)
	asked := map[netip.Addr]bool{}
	var times []time.Time
	start := b.now
	for len(asked) < peers && b.now.Sub(start) < time.Minute {
		for i := range peers {
			b.snap.Unicast(b.macOf(numbered(i)))
		}
		for _, a := range b.advance(50 * time.Millisecond) {
			if s, ok := a.(SendFabric); ok {
				arp, _ := ipoib.ParseARP(s.Msg[ipoib.HeaderLen:])
				asked[arp.TPA] = true
				times = append(times, b.now)
			}
		}
	}
	t.Logf("%d peers requested by %d messages within %v", len(asked), len(times), b.now.Sub(start))
	for i := maxAskRate; i < len(times); i++ {
		if d := times[i].Sub(times[i-maxAskRate]); d < 900*time.Millisecond {
			t.Fatalf("%d requests within %v, want them spread over 900 ms at least", maxAskRate+1, d)
		}
	}
	if took := b.now.Sub(start); len(asked) < peers || took > 10*time.Second {
		t.Errorf("%d of %d peers requested within %v", len(asked), peers, took)
	}
}

// TestFewAddressesOfASilentPeerAreAskedFor: only the latest claims of a silent peer are
// requested, the last one first.
func TestFewAddressesOfASilentPeerAreAskedFor(t *testing.T) {
	b := talkingBench(t, 1)
	for i := range maxIPsUsed {
		b.meet(numbered(0), fmt.Sprintf("10.8.0.%d", i))
	}
	b.snap.Unicast(b.macOf(numbered(0)))
	var got []netip.Addr
	for _, a := range b.advance(2 * silenceLimit) {
		arp, _ := ipoib.ParseARP(a.(SendFabric).Msg[ipoib.HeaderLen:])
		got = append(got, arp.TPA)
	}
	if want := "[10.8.0.255 10.8.0.254 10.8.0.253 10.8.0.252]"; fmt.Sprint(got) != want {
		t.Errorf("requests for %v, want %v", got, want)
	}
}

// TestNoRequestWithoutASource: a host without an address sends no request. A peer
// would take it for duplicate address detection and might give up its own address.
func TestNoRequestWithoutASource(t *testing.T) {
	b := talkingBench(t, 1)
	b.step(HostAddrs{})
	b.snap.Unicast(b.macOf(numbered(0)))
	if out := b.advance(3 * silenceLimit); len(out) != 0 {
		t.Errorf("actions %v, want none", out)
	}
}

// TestForgedStraysAreBounded: thousands of invented senders together get maxNoticeRate
// notices a second, and a single sender gets as many as its pauses allow.
func TestForgedStraysAreBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	count := func(of func(i int) endpoint) (n uint64) {
		before := b.table.Stats().Notices
		for i := range 10_000 { // in 10 s
			b.ready(b.step(Stray{of(i).gid, of(i).qpn}))
			b.now = b.now.Add(time.Millisecond)
		}
		return b.table.Stats().Notices - before
	}
	if n := count(numbered); n > 11*maxNoticeRate || n < 10*maxNoticeRate {
		t.Errorf("invented senders got %d notices within 10 s, want %d a second", n, maxNoticeRate)
	}
	b.advance(time.Second)
	if n := count(func(int) endpoint { return peerB }); n != 4 { // after 0, 1, 3, 7 s
		t.Errorf("one sender got %d notices within 10 s, want 4", n)
	}
}

// TestNoticeNamesAFewAddresses: a sender that keeps sending gets at most maxNoticeIPs
// messages at a time.
func TestNoticeNamesAFewAddresses(t *testing.T) {
	b := attachedBench(t, Config{})
	var addrs []netip.Addr
	for i := range maxHostAddrs {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}))
	}
	b.step(given(addrs...))
	b.advance(time.Minute)
	b.ready(b.step(Stray{peerB.gid, peerB.qpn}))
	b.now = b.now.Add(noticePause)
	out := b.ready(b.step(Stray{peerB.gid, peerB.qpn}))
	if len(out) != maxNoticeIPs+1 { // the last one releases the handle
		t.Fatalf("%d actions, want %d", len(out), maxNoticeIPs+1)
	}
	for _, a := range out[:maxNoticeIPs] {
		if s, ok := a.(SendFabric); !ok || s.Dest.QPN != peerB.qpn {
			t.Errorf("action %v, want only messages to B", a)
		}
	}
}

// BenchmarkReadMarks measures the cost of reading the marks of a full table of busy peers, and its
// share of a processor.
func BenchmarkReadMarks(b *testing.B) {
	bench := crowdedBench(b)
	for b.Loop() {
		for _, p := range bench.table.peers.live.byEndpoint {
			p.sent.mark.Store(true)
			p.heard.mark.Store(true)
		}
		bench.table.peers.readMarks()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*float64(time.Second/markInterval)/1e7, "%core")
}

// BenchmarkPeerMAC measures the cost of PeerMAC, which the data path calls for each
// message received.
func BenchmarkPeerMAC(b *testing.B) {
	bench := knownBench(b)
	from := peerB.key()
	for b.Loop() {
		bench.snap.PeerMAC(from)
	}
}

// TestIdleTableRests: while the data path is idle, the table is not called to read marks. It reads the last ones
// before, and a peer that is silent afterwards is verified in time.
func TestIdleTableRests(t *testing.T) {
	b := talkingBench(t, 1)
	b.snap.PeerMAC(numbered(0).key())
	b.step(DataIdle{Idle: true})
	if heard := b.table.Peers()[0].Heard; !heard.Equal(b.now) {
		t.Errorf("heard %v ago, want now: the last mark was not read", b.now.Sub(heard))
	}
	began, steps := b.now, 0
	for b.now.Sub(began) < time.Minute {
		at, ok := b.table.NextDeadline()
		if !ok {
			break
		}
		b.now = at
		b.step(Tick{})
		steps++
	}
	if most := int(time.Minute/sweepInterval) + 2; steps > most {
		t.Errorf("called %d times in a minute, want %d at most", steps, most)
	}
	b.step(DataIdle{Idle: false})
	mac := b.macOf(numbered(0))
	if got := asks(b.pass(2*silenceLimit, 50*time.Millisecond, func() { b.snap.Unicast(mac) })); len(got) != 1 {
		t.Errorf("requests for %v after a silence, want one", got)
	}
}
