package neigh

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// TestReasonNames: the names are labels, so each must be unique.
func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReason {
		if seen[r.String()] || r.String() == "" {
			t.Errorf("reason %d is called %q, want a unique name", r, r)
		}
		seen[r.String()] = true
	}
	if NumReason.String() != "unknown" {
		t.Error("a reason out of range has a name")
	}
}

func TestCountersNameEverything(t *testing.T) {
	s := Stats{FromHost: 1, KeptSent: 2}
	s.Drops[DropForged] = 3
	got := map[string]uint64{}
	for _, c := range s.Counters() {
		if _, twice := got[c.Name]; twice {
			t.Errorf("two counters are called %q", c.Name)
		}
		got[c.Name] = c.Value
	}
	if got["from_host"] != 1 || got["kept_sent"] != 2 || got["drop_forged_link_address"] != 3 {
		t.Errorf("counters %v, want from_host 1, kept_sent 2 and drop_forged_link_address 3", got)
	}
}

// TestHandleTable applies every cause in the table of handleState to each state
// that it lists.
func TestHandleTable(t *testing.T) {
	send := func(b *bench) { b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB))) }
	id := func(b *bench) uint64 { return b.table.handles.lastID }
	ready := func(b *bench) { b.step(AHReady{id(b), &fakeAH{"ah"}}) }
	timeout := func(b *bench) { b.step(AHFailed{id(b), hca.ErrTimeout}) }
	final := func(b *bench) { b.step(AHFailed{id(b), hca.ErrRange}) }
	wait := func(d time.Duration) func(*bench) { return func(b *bench) { b.advance(d) } }
	detach := func(b *bench) { b.step(Detached{}) }
	for _, c := range []struct {
		name string
		do   []func(*bench)
		want handleState
	}{
		{"nothing", nil, handleNone},
		{"message", []func(*bench){send}, handleAsked},
		{"ready", []func(*bench){send, ready}, handleReady},
		{"message when ready", []func(*bench){send, ready, send}, handleReady},
		{"answered twice", []func(*bench){send, ready, ready}, handleReady},
		{"failed after ready", []func(*bench){send, ready, timeout}, handleReady},
		{"first failure", []func(*bench){send, timeout}, handleWaiting},
		{"message while waiting", []func(*bench){send, timeout, send}, handleWaiting},
		{"waited", []func(*bench){send, timeout, wait(ahBackoff)}, handleAsked},
		{"not yet", []func(*bench){send, timeout, wait(ahBackoff), timeout, wait(2*ahBackoff - 1)}, handleWaiting},
		{"last failure", []func(*bench){send, timeout, wait(ahBackoff), timeout, wait(2 * ahBackoff), timeout}, handleRefused},
		{"final failure", []func(*bench){send, final}, handleRefused},
		{"message when refused", []func(*bench){send, final, send}, handleRefused},
		{"held off", []func(*bench){send, final, wait(ahHoldoff)}, handleNone},
		{"detached while requested", []func(*bench){send, detach}, handleNone},
		{"detached when ready", []func(*bench){send, ready, detach}, handleNone},
		{"detached when waiting", []func(*bench){send, timeout, detach, wait(ahBackoff)}, handleNone},
		{"detached when refused", []func(*bench){send, final, detach}, handleNone},
	} {
		b := attachedBench(t, Config{})
		b.meet(peerB, ipB)
		for _, do := range c.do {
			do(b)
		}
		if got := b.table.peers.live.byEndpoint[peerB].handle.state; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestHandlesGoBackOnce: each handle is returned exactly once, after the last snapshot
// that contains it, in spite of evictions, detaches and late answers.
func TestHandlesGoBackOnce(t *testing.T) {
	b := attachedBench(t, Config{MaxPeers: 6, MaxHeard: 2})
	held, lastSeen := map[hca.AH]bool{}, map[hca.AH]uint64{}
	var watch func(out []Action)
	watch = func(out []Action) {
		for _, a := range out {
			switch a := a.(type) {
			case CreateAH:
				ah := &fakeAH{}
				held[ah] = true
				watch(b.step(AHReady{a.ID, ah}))
			case DestroyAH:
				if !held[a.AH] || a.LastEpoch < lastSeen[a.AH] {
					t.Fatalf("handle %p returned after epoch %d, but in a snapshot until %d", a.AH, a.LastEpoch, lastSeen[a.AH])
				}
				delete(held, a.AH)
			case Publish:
				for _, r := range allOf(a.Snapshot.routes) {
					lastSeen[r.dest.AH] = a.Snapshot.epoch
				}
			}
		}
	}
	for i := range 50 {
		watch(b.step(fabricARP(numbered(i), ipoib.ARPRequest, ipC, ipC, true)))
		watch(b.step(hostIP(ownMAC, b.macOf(numbered(i)), ip(ipA), ip(ipC))))
		watch(b.advance(time.Duration(i) * time.Second))
	}
	watch(b.step(Detached{}))
	if len(held) != 0 || len(lastSeen) == 0 {
		t.Errorf("%d handles were not returned, %d were published", len(held), len(lastSeen))
	}
}

// TestAddressChangeWhileAttached: if the QP number changes without Detached,
// the handles stay, the new address is announced, and a peer with that address
// is removed.
func TestAddressChangeWhileAttached(t *testing.T) {
	b := knownBench(t)
	out := b.step(attachedAt(peerB))
	if b.table.peers.live.byEndpoint[peerB] != nil || !b.snap.Self(peerB.key()) {
		t.Error("a peer has our own address")
	}
	if sent := len(out) - 2; sent != 2 { // the other two are DestroyAH and Publish
		t.Errorf("%d announcements for two addresses: %v", sent, out)
	}
}

// TestAnnouncementCutShort: a detach between two rounds does not lose the
// remaining rounds, and while detached there is no deadline that cannot be met.
func TestAnnouncementCutShort(t *testing.T) {
	b := newBench(t, Config{})
	b.step(HostMAC{ownMAC})
	b.step(given(ip(ipA)))
	b.step(attachedAt(selfEnd))
	b.step(Detached{})
	b.advance(time.Minute)
	if n := b.table.Stats().Announcements; n != 1 {
		t.Fatalf("%d announcements while detached", n-1)
	}
	b.step(attachedAt(selfEnd))
	b.advance(time.Minute)
	if n := b.table.Stats().Announcements; n != 2 { // missed rounds count as one
		t.Errorf("%d announcements, want 2", n)
	}
}

// TestNewHostAddressIsAnnounced: a new address is announced, unless it is known already
// or no node can have it.
func TestNewHostAddressIsAnnounced(t *testing.T) {
	b := attachedBench(t, Config{})
	count := func(addrs ...netip.Addr) int { return len(b.step(given(addrs...))) }
	known := []netip.Addr{ip(ipA), ip(llA)}
	if n := count(known...); n != 0 {
		t.Errorf("%d actions for known addresses", n)
	}
	if n := count(append(known, ip("127.0.0.1"), ip("ff02::1"), ip("::"), netip.Addr{})...); n != 0 {
		t.Errorf("%d actions for addresses that no node can have", n)
	}
	if n := count(append(known, ip("fe80::1%ib0"), ip("::ffff:10.0.0.9"))...); n != 5 {
		t.Errorf("%d actions for two new addresses", n)
	}
	if !b.table.host.stations.has(ip("fe80::1")) || !b.table.host.stations.has(ip("10.0.0.9")) {
		t.Errorf("addresses %v, want fe80::1 and 10.0.0.9", b.table.host.stations.home.ips)
	}
}

// TestSourceOfRequests: requests for an unknown neighbour have the right source address.
func TestSourceOfRequests(t *testing.T) {
	var h, none stations
	h.init()
	none.init()
	h.setGiven(given(ip("10.0.0.1"), ip("fe80::a"), ip("2001:db8::1")).Addrs)
	h.claim(ipoib.MAC{}, ip("10.0.0.9"))
	for _, c := range []struct{ target, wish, want string }{
		{"10.0.0.2", "10.0.0.9", "10.0.0.9"},           // an address of the host
		{"10.0.0.2", "198.51.100.1", "10.0.0.1"},       // routed
		{"10.0.0.2", "2001:db8::1", "10.0.0.1"},        // a hint of the other family
		{"fe80::b", "2001:db8::1", "2001:db8::1"},      // a global source for a link-local target
		{"fe80::b", "2001:db8::99", "fe80::a"},         // routed
		{"2001:db8::2", "2001:db8::99", "2001:db8::1"}, // routed
	} {
		if got := h.source(ip(c.target), ip(c.wish)); got != ip(c.want) {
			t.Errorf("request for %s because of a packet from %s: source %v, want %s", c.target, c.wish, got, c.want)
		}
	}
	if none.source(ip(ipB), ip("198.51.100.1")) != ip("0.0.0.0") || none.source(ip(llB), ip(llA)) != ip("::") {
		t.Error("a request of a host without addresses is not a probe")
	}
}

// TestHints: hints from the kernel take precedence over the packet's
// destination, those of its family first.
func TestHints(t *testing.T) {
	both, v6 := ipoib.MAC{2, 1}, ipoib.MAC{2, 2}
	h := newHints([]Neighbour{{ip(ipB), both}, {ip(llB), both}, {ip("fe80::c%ib0"), v6}, {ip("224.0.0.1"), v6}})
	for _, c := range []struct {
		mac       ipoib.MAC
		dst, want string
	}{
		{both, "198.51.100.1", ipB},
		{both, "2001:db8::9", llB},
		{v6, "198.51.100.1", "fe80::c"},
		{ipoib.MAC{2, 3}, "198.51.100.1", "198.51.100.1"},
	} {
		if got := target(h[c.mac], ip(c.dst)); got != ip(c.want) {
			t.Errorf("%v to %s: %v, want %s", c.mac, c.dst, got, c.want)
		}
	}
}

// TestSharedAddress: two interfaces of one machine answer for the same address (as
// Linux does with arp_ignore=0). Each gets its own entry, and their MACs become
// stable.
func TestSharedAddress(t *testing.T) {
	b := attachedBench(t, Config{})
	other := endpoint{peerB.gid, peerB.qpn + 1}
	b.meet(peerB, ipB)
	b.meet(peerB, ipC)
	for range 3 {
		b.meet(other, ipB)
		b.meet(peerB, ipC)
	}
	first, second := b.macOf(peerB), b.macOf(other)
	for range 3 {
		b.meet(other, ipB)
		b.meet(peerB, ipB)
	}
	if first == second || b.macOf(peerB) != first || b.macOf(other) != second {
		t.Errorf("MACs %v and %v became %v and %v", first, second, b.macOf(peerB), b.macOf(other))
	}
}

// The time of a resolution runs from its first request to the answer. One without an answer
// has none.
func TestResolutionsAreTimed(t *testing.T) {
	b := attachedBench(t, Config{})
	unknown := ipoib.MAC{2, 7}
	b.step(hostIP(ownMAC, unknown, ip(ipA), ip(ipB)))
	b.advance(resolveInterval + 200*time.Millisecond)
	b.step(fabricARP(peerB, ipoib.ARPReply, ipB, ipA, false))
	b.step(hostIP(ownMAC, unknown, ip(ipA), ip("10.0.0.77")))
	b.advance(resolveTries * resolveInterval)
	if got, want := b.table.Stats().Resolved, resolveInterval+200*time.Millisecond; got.Count != 1 || got.Sum != want {
		t.Errorf("%d resolutions in %s, want 1 in %s", got.Count, got.Sum, want)
	}
}

// A queue pair whose address another one at its GID has taken is forgotten once it is silent, also if late packets of it
// arrive after that, or if the other one is gone by then. One that goes on sending stays.
func TestBarePeerIsForgottenWhenSilent(t *testing.T) {
	second, third := endpoint{peerB.gid, 0x23}, endpoint{peerB.gid, 0x24}
	for _, c := range []struct {
		name  string
		talks time.Duration // of the former queue pair, after it has lost its address
		third bool          // takes the address from the second one at once
	}{{"at once", 0, false}, {"after late packets", 150 * time.Millisecond, false}, {"after the third one", 0, true}, {"after a long talk", 5 * time.Second, false}} {
		t.Run(c.name, func(t *testing.T) {
			b := knownBench(t)
			for range 2 { // it is alive
				b.snap.PeerMAC(peerB.key())
				b.advance(markInterval)
			}
			b.meet(second, ipB)
			if c.third {
				b.snap.PeerMAC(second.key())
				b.advance(markInterval)
				b.meet(third, ipB)
			}
			for end := b.now.Add(c.talks); b.now.Before(end); {
				b.snap.PeerMAC(peerB.key())
				b.advance(20 * time.Millisecond)
				if b.table.peers.live.byEndpoint[peerB] == nil {
					t.Fatal("it was forgotten while it sent data")
				}
			}
			b.advance(2 * time.Second)
			if p := b.table.peers.live.byEndpoint[peerB]; p != nil {
				t.Errorf("it is still known: %+v", p)
			}
		})
	}
}
