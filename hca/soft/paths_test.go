package soft

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
)

// pathStep is what the kernel says about a path, and the limit that follows.
type pathStep struct {
	after      time.Duration // since the last step
	dst        string
	mtu, route int // 0: unknown, and as the netdev's
	want       int // the longest IP packet to use; 0: no limit
}

const (
	pathA = "10.0.0.1"
	pathB = "10.0.0.2"
)

func TestPaths(t *testing.T) {
	const full = 1500
	for _, c := range []struct {
		name  string
		steps []pathStep
	}{
		{"wide", []pathStep{{0, pathA, 1500, 0, 0}, {0, pathB, 0, 0, 0}, {0, pathB, 9000, 0, 0}}},
		{"narrow at once", []pathStep{{0, pathA, 1400, 0, 1400}, {0, pathA, 1380, 0, 1380}}},
		{"the narrowest limits", []pathStep{{0, pathA, 1400, 0, 1400}, {0, pathB, 1440, 0, 1400}, {0, pathB, 1360, 0, 1360}}},
		{"another family does not", []pathStep{{0, "fd00::1", 1400, 0, 0}}},
		{"wide after a while", []pathStep{
			{0, pathA, 1400, 0, 1400}, {time.Second, pathA, 1500, 0, 1400}, {firstHold - 2*time.Second, pathA, 1500, 0, 1400}, {time.Second, pathA, 1500, 0, 0},
		}},
		{"narrow again in between", []pathStep{
			{0, pathA, 1400, 0, 1400}, {firstHold - 1, pathA, 1500, 0, 1400}, {0, pathA, 1400, 0, 1400}, {firstHold - 1, pathA, 1500, 0, 1400}, {1, pathA, 1500, 0, 0},
		}},
		{"wider, but not wide", []pathStep{{0, pathA, 1360, 0, 1360}, {1, pathA, 1400, 0, 1360}, {firstHold, pathA, 1400, 0, 1400}}},
		{"without a route, or no longer used", []pathStep{{0, pathA, 1400, 0, 1400}, {1, pathA, 0, 0, 1400}, {firstHold, pathA, 0, 0, 0}}},
		{"a rise that was too early makes the next one later", []pathStep{
			{0, pathA, 1400, 0, 1400},
			{firstHold, pathA, 1500, 0, 0},
			{relapse - 1, pathA, 1400, 0, 1400},
			{0, pathB, 1400, 0, 1400},
			{0, pathB, 1500, 0, 1400},
			{4*firstHold - 1, pathA, 1500, 0, 1400},
			{1, pathA, 1500, 0, 1400},
			{0, pathB, 1500, 0, 0},
			{relapse - 1, pathA, 1400, 0, 1400},
			{16*firstHold - 1, pathA, 1500, 0, 1400},
			{1, pathA, 1500, 0, 0},
			{relapse - 1, pathA, 1400, 0, 1400},
			{64*firstHold - 1, pathA, 1500, 0, 1400},
			{1, pathA, 1500, 0, 0},
			{relapse - 1, pathA, 1400, 0, 1400},
			{lastHold - 1, pathA, 1500, 0, 1400},
			{1, pathA, 1500, 0, 0},
			{relapse - 1, pathA, 1400, 0, 1400},
			{lastHold - 1, pathA, 1500, 0, 1400},
			{1, pathA, 1500, 0, 0},
			{relapse, pathA, 1400, 0, 1400},
			{firstHold, pathA, 1500, 0, 0},
		}},
		{"reports are trusted down to IPv6 on the interface", []pathStep{
			{0, pathA, 1336, 1500, 1336}, {0, pathA, 1335, 1500, 1336}, {0, pathA, 68, 1500, 1336},
		}},
		{"routes are trusted", []pathStep{{0, pathA, 1300, 1300, 1300}, {0, pathA, 700, 1300, 1300}, {0, pathA, 700, 700, 700}, {0, pathB, 600, 1400, 700}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, from, gid := paths{}, port{mtu: full}, netip.MustParseAddr("10.0.0.9")
			now := time.Unix(1000, 0)
			for i, s := range c.steps {
				now = now.Add(s.after)
				route := s.route
				if route == 0 {
					route = full
				}
				p.saw(now, netip.MustParseAddr(s.dst), s.mtu, route, full)
				l, want := p.limit(now, &from, gid), 0
				if s.want != 0 {
					want = from.payload(gid, s.want)
				}
				if l.MaxPayload != want || l.To.IsValid() != (want != 0) {
					t.Fatalf("step %d, %+v: limit %+v, want a payload of %d", i, s, l, want)
				}
			}
		})
	}
}

// A limit says to whom the path leads, and what it carries.
func TestPathLimit(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")
	a, b, c := netip.MustParseAddr(pathA), netip.MustParseAddr(pathB), netip.MustParseAddr("fd00::1")
	var p paths
	for dst, mtu := range map[netip.Addr]int{a: 1400, b: 1400, c: 1300} {
		p.saw(time.Unix(1000, 0), dst, mtu, 9000, 9000)
	}
	for _, x := range []struct {
		name   string
		gid    netip.Addr
		mtu    int // of the netdev
		strict bool
		want   hca.PathLimit
	}{
		{"IPv4", v4, 1500, false, hca.PathLimit{To: a, MTU: 1400, Carries: 1348, MaxPayload: 1348, Reported: true}},
		{"IPv6, below the floor", v6, 1500, false, hca.PathLimit{To: c, MTU: 1300, Carries: 1228, MaxPayload: 1284, Reported: true}},
		{"the netdev is as narrow", v4, 1400, false, hca.PathLimit{}},
		{"the netdev is below the floor", v6, 1310, false, hca.PathLimit{To: c, MTU: 1300, Carries: 1228, MaxPayload: 1236, Reported: true}},
		{"standard MTUs", v4, 9000, true, hca.PathLimit{To: a, MTU: 1400, Carries: 1024, MaxPayload: 2048, Reported: true}},
		{"standard MTUs that fit", v4, 1500, true, hca.PathLimit{}},
	} {
		if l := p.limit(time.Unix(1000, 0), &port{mtu: x.mtu, strict: x.strict}, x.gid); l != x.want {
			t.Errorf("%s: %+v, want %+v", x.name, l, x.want)
		}
	}
}

// Reports that were refuted are ignored for a while, including those of an even narrower path, as far as the packet
// that has passed was longer. Routes still count.
func TestRefutedPath(t *testing.T) {
	const full = 1500
	a, gid := netip.MustParseAddr(pathA), netip.MustParseAddr("10.0.0.9")
	for _, c := range []struct {
		name          string
		route, passed int
		want          int // MTU of the limit while reports are ignored; 0: none
	}{{"a long packet", full, full, 0}, {"a narrow route", 1450, full, 1450}, {"a shorter packet", full, 1420, 1420}} {
		p, start := paths{}, time.Unix(1000, 0)
		mtu := func(after time.Duration) int { return p.limit(start.Add(after), &port{mtu: full}, gid).MTU }
		p.refute(start, a, full) // nothing to refute
		p.saw(start, a, 1400, c.route, full)
		if n := mtu(0); n != 1400 {
			t.Errorf("%s: limit %d, want 1400", c.name, n)
		}
		p.refute(start, a, c.passed)
		p.refute(start, a, 1200)
		if n := mtu(0); n != c.want {
			t.Errorf("%s: refuted: limit %d, want %d", c.name, n, c.want)
		}
		p.saw(start.Add(time.Second), a, 1300, c.route, full)
		if n := mtu(refutedFor - 1); n != c.want {
			t.Errorf("%s: reported as narrower: limit %d, want %d", c.name, n, c.want)
		}
		if n := mtu(refutedFor); n != 1300 {
			t.Errorf("%s: later: limit %d, want 1300", c.name, n)
		}
	}
}

// However many forged reports were refuted, a path that is really narrow is remembered.
func TestRefutedPathsMakeRoom(t *testing.T) {
	var p paths
	now := time.Unix(1000, 0)
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}) }
	for i := range maxNarrow {
		p.saw(now, at(i), 1300, 1500, 1500)
		p.refute(now, at(i), 1500)
	}
	p.saw(now, at(maxNarrow), 1400, 1500, 1500)
	if l := p.limit(now, &port{mtu: 1500}, at(0)); l.MTU != 1400 {
		t.Errorf("limit %+v, want MTU 1400", l)
	}
}

// However many paths are narrow, the memory is bounded, and the narrowest are kept.
func TestManyNarrowPaths(t *testing.T) {
	var p paths
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	for i := range 20 * maxNarrow {
		p.saw(time.Unix(1000, 0), at(i), 1500-i%(10*maxNarrow)/2-1, 1500, 1500)
	}
	if len(p.narrow) != maxNarrow {
		t.Errorf("%d paths are remembered, want %d", len(p.narrow), maxNarrow)
	}
	if l := p.limit(time.Unix(1000, 0), &port{mtu: 1500}, at(0)); l.MTU != 1500-5*maxNarrow {
		t.Errorf("limit %+v, want MTU %d", l, 1500-5*maxNarrow)
	}
}
