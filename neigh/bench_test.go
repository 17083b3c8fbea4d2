package neigh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// fakeAH is a handle that consists only of a name.
type fakeAH struct{ name string }

func (h *fakeAH) Spec() hca.AHSpec { return hca.AHSpec{} }
func (h *fakeAH) Close() error     { return nil }
func (h *fakeAH) String() string   { return h.name }

var (
	epochTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	ownMAC    = ipoib.MAC{0x02, 0, 0, 0, 0, 0x01}
	selfEnd   = endpoint{gidOf("192.0.2.1"), 0x11}
	peerB     = endpoint{gidOf("192.0.2.2"), 0x22}
	peerC     = endpoint{gidOf("192.0.2.3"), 0x33}
	broadcast = hca.UDDest{AH: &fakeAH{"broadcast"}, QPN: hca.QPNMulticast, QKey: 0x0b1b}
)

const (
	ipA = "10.0.0.1"
	ipB = "10.0.0.2"
	ipC = "10.0.0.3"
	llA = "fe80::a"
	llB = "fe80::b"
)

func gidOf(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }
func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// given are addresses of the host in networks of the usual sizes.
func given(addrs ...netip.Addr) (ev HostAddrs) {
	for _, a := range addrs {
		ev.Addrs = append(ev.Addrs, netip.PrefixFrom(a, max(24, a.BitLen()/2)))
	}
	return ev
}

func attachedAt(self endpoint) Attached {
	return Attached{Self: self.addr(), Broadcast: broadcast, QKey: 0x0b1b, MTU: 2044}
}

// failer has the methods of testing.TB and *rapid.T that a bench needs.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bench runs a table under test. It keeps the time and the published snapshot, and checks
// the table's invariants after each step.
type bench struct {
	tb    failer
	table *Table
	now   time.Time
	snap  *Snapshot
	out   []Action // actions of the last step
}

func newBench(tb failer, conf Config) *bench {
	return &bench{tb: tb, table: New(conf), now: epochTime, snap: new(Snapshot)}
}

// attachedBench is a bench whose host has ownMAC and ipA, and whose QP is up.
func attachedBench(tb failer, conf Config) *bench {
	b := newBench(tb, conf)
	b.step(HostMAC{ownMAC})
	b.step(given(ip(ipA), ip(llA)))
	b.step(attachedAt(selfEnd))
	b.advance(announceTimes[len(announceTimes)-1])
	return b
}

// step applies an event at the current time and returns the actions.
func (b *bench) step(ev Event) []Action {
	b.tb.Helper()
	strays := b.table.strays()
	if _, ok := ev.(Stray); ok {
		strays++
	}
	b.out = b.table.Step(b.now, ev, nil)
	if got := b.table.strays(); got != strays {
		b.tb.Fatalf("after %T: %d strays are accounted for, want %d", ev, got, strays)
	}
	for i, a := range b.out {
		p, ok := a.(Publish)
		if !ok {
			continue
		}
		if i != len(b.out)-1 || p.Snapshot.Epoch() != b.snap.Epoch()+1 {
			b.tb.Fatalf("action %d of %d publishes epoch %d after %d", i, len(b.out), p.Snapshot.Epoch(), b.snap.Epoch())
		}
		b.snap = p.Snapshot
	}
	if err := b.table.check(); err != nil {
		b.tb.Fatalf("after %T: %v", ev, err)
	}
	return b.out
}

// advance advances the time, stepping at each deadline, and returns all
// actions.
func (b *bench) advance(d time.Duration) (all []Action) {
	b.tb.Helper()
	end := b.now.Add(d)
	for {
		at, ok := b.table.NextDeadline()
		if !ok || at.After(end) {
			break
		}
		if at.After(b.now) {
			b.now = at
		}
		all = append(all, b.step(Tick{})...)
		if next, ok := b.table.NextDeadline(); ok && !next.After(b.now) {
			b.tb.Fatalf("deadline %v is still due after a step at %v", next, b.now)
		}
	}
	b.now = end
	return append(all, b.step(Tick{})...)
}

// macOf returns the MAC of a peer in the table.
func (b *bench) macOf(e endpoint) ipoib.MAC {
	b.tb.Helper()
	p := b.table.peers.live.byEndpoint[e]
	if p == nil {
		b.tb.Fatalf("the table has no peer %v", e)
	}
	return p.mac
}

// ready answers every CreateAH among actions and returns the resulting actions.
func (b *bench) ready(actions []Action) (out []Action) {
	b.tb.Helper()
	for _, a := range actions {
		if c, ok := a.(CreateAH); ok {
			out = append(out, b.step(AHReady{c.ID, &fakeAH{fmt.Sprintf("ah%d", c.ID)}})...)
		}
	}
	return out
}

// meet adds a peer by a gratuitous ARP request.
func (b *bench) meet(e endpoint, addr string) {
	b.tb.Helper()
	b.step(fabricARP(e, ipoib.ARPRequest, addr, addr, true))
}

// strays returns the number of Strays that are accounted for.
func (t *Table) strays() uint64 {
	s := t.Stats()
	return s.Notices + s.StraysPaused + s.StraysLimited + s.StraysUnanswerable + uint64(len(t.notices.asked))
}

// check checks the invariants of a table's indexes, classes, bounds and
// counters.
func (t *Table) check() error {
	s, sum := t.Stats(), uint64(0)
	for _, n := range s.Drops {
		sum += n
	}
	got := s.ToFabric + s.ToHost + s.EchoReplies + s.KeptSent + uint64(s.Kept) + sum
	switch n := len(t.peers.live.byEndpoint); {
	case s.FromHost+s.FromFabric+s.Pings != got:
		return fmt.Errorf("%d + %d + %d frames in, %d accounted for: %+v", s.FromHost, s.FromFabric, s.Pings, got, s)
	case n != len(t.peers.live.byMAC) || n != s.Heard+s.Used:
		return fmt.Errorf("%d endpoints, %d MACs, %d heard, %d used", n, len(t.peers.live.byMAC), s.Heard, s.Used)
	case s.Heard > t.peers.conf.MaxHeard || s.Used > t.peers.conf.MaxPeers-t.peers.conf.MaxHeard:
		return fmt.Errorf("%d heard, %d used of %+v", s.Heard, s.Used, t.peers.conf)
	case s.KeptBytes > maxKeptBytes || s.Resolutions > 2*maxResolutions:
		return fmt.Errorf("resolver exceeds its bounds: %+v", s)
	case len(t.notices.last) > maxNoticed || len(t.notices.asked) > maxAnswerAHs || !t.host.link.up && len(t.notices.asked) > 0:
		return fmt.Errorf("%d senders noticed, %d handles requested", len(t.notices.last), len(t.notices.asked))
	}
	if err := t.host.stations.check(); err != nil {
		return err
	}
	if err := t.checkKept(); err != nil {
		return err
	}
	if err := t.checkPast(); err != nil {
		return err
	}
	if err := t.checkLIDs(); err != nil {
		return err
	}
	if err := t.checkShown(); err != nil {
		return err
	}
	return t.checkPeers()
}

func (t *Table) checkKept() error {
	frames, bytes := 0, 0
	add := func(q queue) {
		for _, f := range q.frames {
			frames, bytes = frames+1, bytes+len(f)
		}
	}
	for _, p := range t.peers.live.byEndpoint {
		add(p.kept)
	}
	for _, p := range t.lids.paths {
		for _, c := range p.claims {
			frames, bytes = frames+1, bytes+len(c.msg)
		}
	}
	for ip, r := range t.resolver.byIP {
		if r.ip != ip || r.alarm.pos == 0 || t.peers.live.byIP[ip] != nil {
			return fmt.Errorf("inconsistent resolution of %v: %+v", ip, r)
		}
		add(r.kept)
	}
	for ip, r := range t.seeker.byIP {
		if r.ip != ip || r.alarm.pos == 0 || t.host.stations.has(ip) {
			return fmt.Errorf("inconsistent search of %v: %+v", ip, r)
		}
		add(r.kept)
	}
	if frames != t.step.stats.Kept || bytes != t.step.stats.KeptBytes {
		return fmt.Errorf("%d frames of %d bytes kept, counted as %+v", frames, bytes, t.step.stats)
	}
	return nil
}

// checkPast checks the invariants of the removed peers that are remembered.
func (t *Table) checkPast() error {
	s, ips, gids := &t.peers.past, 0, 0
	if n := len(s.byEndpoint); n != len(s.byMAC) || n != s.heard.Len()+s.used.Len() ||
		s.heard.Len() > t.peers.conf.MaxHeard || s.used.Len() > t.peers.conf.MaxPeers-t.peers.conf.MaxHeard {
		return fmt.Errorf("remembered: %d endpoints, %d MACs, %d heard, %d used", n, len(s.byMAC), s.heard.Len(), s.used.Len())
	}
	for e, p := range s.byEndpoint {
		ips += len(p.ips)
		if p.endpoint != e || s.byMAC[p.mac] != p || t.peers.live.byMAC[p.mac] != nil || p.handle.state != handleNone ||
			len(p.kept.frames) > 0 || p.silence.alarm.pos > 0 {
			return fmt.Errorf("inconsistent remembered peer %v: %+v", e, p)
		}
		for _, ip := range p.ips {
			if s.byIP[ip] != p {
				return fmt.Errorf("%v is not remembered at %v", ip, e)
			}
		}
	}
	for gid, there := range s.byGID {
		if gids += len(there); len(there) == 0 || len(there) > maxPeersPerGID {
			return fmt.Errorf("%d remembered peers of GID %v", len(there), gid)
		}
	}
	if ips != len(s.byIP) || gids != len(s.byEndpoint) {
		return fmt.Errorf("remembered: %d IPs of %d, %d peers by GID of %d", ips, len(s.byIP), gids, len(s.byEndpoint))
	}
	return nil
}

// checkLIDs checks that the index by LID names no peer whose path does not lead to that LID, and the bounds of claims.
func (t *Table) checkLIDs() error {
	s, claims, waiting := &t.lids, 0, map[hca.LID]int{}
	for gid, p := range s.paths {
		if claims += len(p.claims); len(p.claims) > 0 && !p.asked || p.lid != p.DLID.Base(t.host.link.lmc) {
			return fmt.Errorf("path to %v: %+v", gid, p)
		}
		for _, c := range p.claims {
			if waiting[c.lid]++; c.e.gid != gid {
				return fmt.Errorf("claim of %v waits for the path to %v", c.e, gid)
			}
		}
	}
	if claims != s.claims || claims > maxClaims || !maps.Equal(waiting, s.waiting) || len(s.paths) > maxPaths+t.peers.conf.MaxPeers {
		return fmt.Errorf("%d claims of %d, by LID %v of %v, %d paths", claims, s.claims, waiting, s.waiting, len(s.paths))
	}
	if t.host.link.lid == 0 && len(s.paths)+len(t.peers.live.byLID) > 0 {
		return fmt.Errorf("%d paths, %d peers by LID on RoCE", len(s.paths), len(t.peers.live.byLID))
	}
	placed := 0
	for e, p := range t.peers.live.byEndpoint {
		if p.lid == 0 {
			continue
		}
		if placed++; p.lid != s.of(e.gid) || t.peers.live.byLID[p.byLID()] != p {
			return fmt.Errorf("peer %v is at LID %v, its path leads to %v", e, p.lid, s.of(e.gid))
		}
	}
	if placed != len(t.peers.live.byLID) {
		return fmt.Errorf("%d peers by LID of %d", placed, len(t.peers.live.byLID))
	}
	return nil
}

func (t *Table) checkPeers() error {
	ips, ready, paused, awaited, gids := 0, 0, 0, 0, 0
	for gid, there := range t.peers.live.byGID {
		if gids += len(there); len(there) == 0 || len(there) > maxPeersPerGID {
			return fmt.Errorf("%d peers of GID %v", len(there), gid)
		}
	}
	for e, p := range t.peers.live.byEndpoint {
		ips += len(p.ips)
		if p.silence.alarm.pos > 0 {
			awaited++
		}
		if !slices.Contains(t.peers.live.byGID[e.gid], p) || !t.host.link.up && p.silence.alarm.pos > 0 {
			return fmt.Errorf("peer %v: %+v, its GID has %d", e, p, len(t.peers.live.byGID[e.gid]))
		}
		switch h := &p.handle; h.state {
		case handleReady:
			ready++
		case handleWaiting, handleRefused:
			paused++
		case handleNone, numHandleState:
		case handleAsked:
			if path := t.lids.paths[p.gid]; h.id == 0 && path != nil && path.asked {
				break
			}
			if t.handles.asked[h.id] != p {
				return fmt.Errorf("request %d of %v is lost", h.id, e)
			}
		}
		bad := p.endpoint != e || t.peers.live.byMAC[p.mac] != p || t.host.stations.is(p.mac) ||
			p.mac[0]&3 != 2 || len(p.ips) > maxIPsUsed || e == t.host.link.self ||
			len(p.kept.frames) > 0 && p.handle.state != handleAsked && p.handle.state != handleWaiting
		if bad {
			return fmt.Errorf("inconsistent peer %v: %+v", e, p)
		}
		for _, ip := range p.ips {
			if t.peers.live.byIP[ip] != p {
				return fmt.Errorf("%v is not bound to %v", ip, e)
			}
		}
	}
	if awaited != t.silent.proven.Len()+t.silent.others.Len() || gids != len(t.peers.live.byEndpoint) {
		return fmt.Errorf("%d awaited of %d, %d peers by GID of %d", awaited, t.silent.proven.Len()+t.silent.others.Len(), gids, len(t.peers.live.byEndpoint))
	}
	if ips != len(t.peers.live.byIP) || ready != t.step.stats.AHs || paused != t.handles.pauses.Len() {
		return fmt.Errorf("%d IPs of %d, %d ready of %d, %d paused of %d",
			ips, len(t.peers.live.byIP), ready, t.step.stats.AHs, paused, t.handles.pauses.Len())
	}
	return nil
}
