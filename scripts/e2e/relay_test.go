package e2e

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// relaySeed is the seed of every relay, so that each run of a test impairs the n-th datagram of
// a direction in the same way.
const relaySeed = 12

// impaired are the rates of the tests. A connection still carries 1 Gb/s and more.
var impaired = rates{lose: 0.0005, duplicate: 0.001, hold: 0.005, damage: 0.0005}

// relayed is a pair of daemons that communicate through a relay.
type relayed struct {
	*relay
	hosts  [2]*host
	before []book
	// missing is how many numbered datagrams passed the relay, but did not arrive.
	missing uint64
}

// newRelayedPair starts the daemons, and begins to impair datagrams when they rest.
func newRelayedPair(tb testing.TB, mtu int, rate rates, args func(number int) []string) *relayed {
	tb.Helper()
	hosts, r := newRelay(tb, mtu)
	for _, h := range hosts {
		h.join(args(h.number)...)
	}
	pingAll(hosts[:]...)
	p := &relayed{relay: r, hosts: hosts}
	p.before = p.atRest(func() {
		for i, l := range r.legs {
			l.impairment = newImpairment(relaySeed, uint64(i), rate)
		}
	})
	return p
}

// atRest calls f, which may use the tallies, while there is no traffic, and returns the counters
// of that time. It calls f again if there was some after all.
func (p *relayed) atRest(f func()) []book {
	p.tb.Helper()
	for {
		books := rest(p.tb, p.hosts[:]...)
		p.mu.Lock()
		f()
		p.mu.Unlock()
		if same(books, []book{p.hosts[0].book(), p.hosts[1].book()}) {
			return books
		}
	}
}

// same reports whether there was no traffic between two readings of the counters.
func same(a, b []book) bool {
	return slices.EqualFunc(a, b, func(a, b book) bool { return maps.Equal(a.traffic(), b.traffic()) })
}

// sameArgs are the arguments of a daemon for both hosts.
func sameArgs(args ...string) func(int) []string { return func(int) []string { return args } }

// overload are the counters of datagrams that a daemon drops if it gets too little of the
// processors. They are exact, but it is unknown whether these datagrams were damaged.
var overload = []string{"hca_wire_socket_drops", "hca_rx_drop_no_recv"}

// requireExact waits until there is no traffic and checks that every datagram and every frame is
// accounted for: the daemons' counters match what the relay read, dropped, duplicated and damaged.
func (p *relayed) requireExact() {
	p.tb.Helper()
	var from [2]tally
	after := p.atRest(func() {
		for i, l := range p.legs {
			from[i] = l.tally
			from[i].drops = maps.Clone(l.tally.drops)
		}
	})
	excess := uint64(0)
	for i, h := range p.hosts {
		in, out, k := from[1-i], from[i], after[i].since(p.before[i])
		p.tb.Logf("to host %d: read %d, lost %d, duplicated %d, held back %d, damaged: %d bits flipped, %d garbled, %d swapped, %d of these harmless; written %d, %d of these in trains",
			i, in.read, in.lost, in.duplicated, in.held, in.damaged[flipBits], in.damaged[garble], in.damaged[swapWords], in.harmless, in.written, in.joined)
		h.checkAccounts(k, map[netip.Addr]uint64{h.underlayAddr(): out.read, netip.IPv4Unspecified(): in.written})
		if in.forged != 0 {
			p.tb.Errorf("host %d sent %d datagrams with a wrong ICRC", 1-i, in.forged)
		}
		if want := in.read - in.lost + in.duplicated; in.written != want {
			p.tb.Errorf("the relay wrote %d datagrams to host %d, want %d", in.written, i, want)
		}
		busy := k.of(overload...)
		excess += busy
		for _, name := range recvDrops {
			got, want := k.of(name), in.drops[name]
			if slices.Contains(overload, name) {
				continue
			}
			if got+want > 0 {
				p.tb.Logf("host %d: %-46s %7d = %d", i, name, got, want)
			}
			if got > want || got+busy < want {
				p.tb.Errorf("host %d: %s is %d, the relay caused %d, and %d were dropped for lack of time", i, name, got, want, busy)
			}
		}
	}
	if p.missing > excess {
		p.tb.Errorf("%d datagrams passed the relay but did not arrive, and the daemons dropped %d for lack of time", p.missing, excess)
	}
}

// At each MTU, files cross an impaired underlay whole, and numbered datagrams arrive as often as they
// passed it undamaged. One of the underlays is IPv6. No daemon loses, invents or changes anything itself.
func TestFilesOverAnImpairedUnderlay(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	size := form[int64](32<<20, 1<<30)
	files := [2]file{newFile(t, 0, size), newFile(t, 1, size)}
	for _, c := range []struct {
		name     string
		mtu      int // of ib0
		underlay int
		gid      func(int) string
	}{
		{"1444", 1444, 1500, nstest.IPv4},
		{"2044", 2044, 2120, nstest.IPv6},
		{"4092", 4092, 9000, nstest.IPv4},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !*soak { // the short form consists of waits
				t.Parallel()
			}
			p := newRelayedPair(t, c.underlay, impaired, func(n int) []string { return []string{"--mtu", c.name, "--gid", c.gid(n)} })
			if got := p.hosts[0].iface().MTU; got != c.mtu {
				t.Fatalf("the MTU is %d, want %d", got, c.mtu)
			}
			p.transferFiles(t, files)
			sizes := numberedSizes(form(4000, 100000), c.mtu)
			p.sendNumbered(t, (*host).ip4, sizes)
			p.sendNumbered(t, (*host).ip6, sizes)
			p.requireExact()
		})
	}
}
