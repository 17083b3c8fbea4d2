package neigh

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// world drives a table with random events. bench checks after each step that the
// counters add up and the indexes agree; world checks the externally visible
// behaviour.
type world struct {
	*bench
	asked []uint64        // unanswered CreateAH actions
	held  map[hca.AH]bool // handles created and not yet returned
}

var (
	worldEnds = []endpoint{
		peerB, peerC,
		{peerB.gid, 0x23},
		{peerB.gid, 0x24},
		{peerC.gid, 0x33 + 1},
		numbered(1), numbered(2), selfEnd,
		{selfEnd.gid, 0x12},
		{hca.GID{}, 5},
		{peerB.gid, 1},
	}
	worldIPs  = []string{ipA, ipB, ipC, "10.0.0.4", "0.0.0.0", "10.0.0.255", "224.0.0.1"}
	worldIP6s = []string{llA, llB, "fe80::c", "2001:db8::1", "2001:db8::2", "ff02::1", "::"}
	foreign   = ipoib.MAC{2, 0xbb}
	worldMACs = []ipoib.MAC{
		ownMAC, foreign,
		{2, 0xcc},
		ipoib.Broadcast,
		{1, 0, 0x5e, 0, 0, 1},
		{},
		plainMAC(peerB.gid), plainMAC(peerC.gid),
		rehashedMAC(peerB.gid, 0x23, 1), plainMAC(numbered(1).gid),
	}
)

// TestWorld: for random events in random order, each frame ends in one counter,
// the indexes agree, bounds hold, each handle is returned once, and the
// published snapshot agrees with the table.
func TestWorld(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(rt, Config{MaxPeers: 5, MaxHeard: 2})
		w := &world{bench: b, held: map[hca.AH]bool{}}
		rt.Repeat(map[string]func(*rapid.T){
			"host arp":   w.hostARP,
			"host ip":    w.hostIP,
			"host nd":    w.hostND,
			"fabric arp": w.fabricARP,
			"fabric nd":  w.fabricND,
			"data path":  w.dataPath,
			"attach":     w.attach,
			"detach":     func(*rapid.T) { w.do(Detached{}) },
			"port": func(t *rapid.T) {
				w.do(HostPort{Up: rapid.Bool().Draw(t, "up"), Bridge: rapid.IntRange(0, 2).Draw(t, "bridge"), Master: pick(t, "master", append(worldMACs, ipoib.MAC{}))})
			},
			"mac":         func(t *rapid.T) { w.do(HostMAC{pick(t, "mac", worldMACs)}) },
			"addrs":       w.addrs,
			"neighbours":  w.neighbours,
			"asks":        func(t *rapid.T) { w.do(HostAsks{[]netip.Addr{pickIP(t, "first"), pickIP(t, "second")}}) },
			"stray":       w.stray,
			"ping":        w.ping,
			"echo":        w.echo,
			"groups":      w.groups,
			"query":       w.query,
			"ah answered": w.answer,
			"advance":     w.wait,
		})
		w.end(rt)
	})
}

func pick[T any](t *rapid.T, name string, from []T) T { return rapid.SampledFrom(from).Draw(t, name) }

func pickIP(t *rapid.T, name string) netip.Addr {
	if rapid.Bool().Draw(t, name+" is IPv6") {
		return ip(pick(t, name, worldIP6s))
	}
	return ip(pick(t, name, worldIPs))
}

// do applies an event and tracks the handles.
func (w *world) do(ev Event) { w.trackHandles(w.step(ev)) }

func (w *world) trackHandles(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case CreateAH:
			w.asked = append(w.asked, a.ID)
			if a.Path != (hca.UDPath{}) {
				w.tb.Fatalf("path %+v on RoCE", a.Path)
			}
		case FindPath:
			w.tb.Fatalf("path to %v requested on RoCE", a.GID)
		case DestroyAH:
			if !w.held[a.AH] {
				w.tb.Fatalf("handle %v returned, which is not held", a.AH)
			}
			delete(w.held, a.AH)
		case SendFabric:
			if a.Dest != broadcast && !w.held[a.Dest.AH] {
				w.tb.Fatalf("send with handle %v, which was returned", a.Dest.AH)
			}
		}
	}
}

func (w *world) hostARP(t *rapid.T) {
	src, dst := pick(t, "source", worldMACs), pick(t, "destination", worldMACs)
	op := uint16(rapid.IntRange(1, 4).Draw(t, "operation"))
	w.do(hostARP(src, dst, op, pick(t, "sender", worldIPs), pick(t, "target", worldIPs)))
}

func (w *world) hostIP(t *rapid.T) {
	src, dst := pick(t, "source", worldMACs), pick(t, "destination", worldMACs)
	to := pickIP(t, "to")
	from := ip(pick(t, "from", worldIPs))
	if to.Is6() {
		from = ip(pick(t, "from", worldIP6s))
	}
	for range rapid.SampledFrom([]int{1, 1, 1, maxPeerFrames}).Draw(t, "frames") {
		w.do(hostIP(src, dst, from, to))
	}
}

func (w *world) hostND(t *rapid.T) {
	m := w.nd(t)
	if rapid.Bool().Draw(t, "with option") {
		m.options = etherLink(linkType(m.typ), pick(t, "link", worldMACs))
	}
	w.do(hostND(pick(t, "source", worldMACs), pick(t, "destination", worldMACs), m))
}

func (w *world) nd(t *rapid.T) ndMessage {
	typ := uint8(rapid.IntRange(int(ipoib.NDRouterSolicit), int(ipoib.NDRedirect)).Draw(t, "type"))
	return nd(typ, ip(pick(t, "from", worldIP6s)), ip(pick(t, "to", worldIP6s)), ip(pick(t, "target", worldIP6s)), nil)
}

func (w *world) fabricARP(t *rapid.T) {
	op := uint16(rapid.IntRange(1, 4).Draw(t, "operation"))
	e := pick(t, "sender", worldEnds)
	w.do(fabricARP(e, op, pick(t, "sender IP", worldIPs), pick(t, "target", worldIPs), rapid.Bool().Draw(t, "multicast")))
}

func (w *world) fabricND(t *rapid.T) {
	m := w.nd(t)
	e := pick(t, "sender", worldEnds)
	if rapid.Bool().Draw(t, "with option") {
		m.options = ipoibLink(linkType(m.typ), pick(t, "link", append([]endpoint{e, e, e}, worldEnds...)))
	}
	w.do(fabricND(e, m))
}

// dataPath makes random lookups in the current snapshot.
func (w *world) dataPath(t *rapid.T) {
	w.snap.FromHost(pick(t, "source", worldMACs))
	w.snap.Unicast(pick(t, "destination", worldMACs))
	from := pick(t, "sender", worldEnds)
	w.snap.PeerMAC(from.key())
}

func (w *world) stray(t *rapid.T) {
	e := pick(t, "sender", worldEnds)
	w.do(Stray{e.gid, e.qpn})
}

func (w *world) ping(t *rapid.T) {
	ev := Ping{ID: 1, Size: pick(t, "size", []int{0, 56, 2044, 4096})}
	if rapid.Bool().Draw(t, "by address") {
		ev.IP = pickIP(t, "IP")
	} else {
		e := pick(t, "endpoint", worldEnds)
		ev.GID, ev.QPN = e.gid, e.qpn
	}
	w.do(ev)
}

func (w *world) echo(t *rapid.T) {
	e := pick(t, "sender", worldEnds)
	msg := ipoib.Echo{Reply: rapid.Bool().Draw(t, "reply"), ID: 1}.Message(56)
	for range rapid.SampledFrom([]int{1, 1, maxEchoRate + 1}).Draw(t, "messages") {
		w.do(FromFabric{msg, e.key(), rapid.Bool().Draw(t, "multicast")})
	}
}

func (w *world) groups(t *rapid.T) {
	groups := []netip.Addr{ip("239.1.1.1"), ip("239.1.1.2")}
	if rapid.Bool().Draw(t, "IPv6") {
		groups = []netip.Addr{ip("ff05::1"), ip("ff05::2")}
	}
	packet := groupReport(rapid.SampledFrom([]byte{recordIs, recordLeave, recordJoin}).Draw(t, "kind"), groups[rapid.IntRange(0, 1).Draw(t, "first"):])
	w.do(FromHost{append(newFrame(ipoib.MAC{1, 0, 0x5e, 0, 0, 22}, pick(t, "source", worldMACs), etherTypeFor(groups[0])), packet...)})
}

func (w *world) query(t *rapid.T) {
	src := ip(pick(t, "from", []string{ipB, llB}))
	packet := ipoib.AppendMembershipQuery(nil, src)
	if rapid.Bool().Draw(t, "of a station") {
		w.do(FromHost{append(newFrame(ipoib.MAC{1, 0, 0x5e, 0, 0, 1}, pick(t, "source", worldMACs), etherTypeFor(src)), packet...)})
		return
	}
	e := pick(t, "sender", worldEnds)
	w.do(FromFabric{append(newMessage(etherTypeFor(src)), packet...), e.key(), true})
}

func (w *world) attach(t *rapid.T) {
	w.do(attachedAt(pick(t, "self", []endpoint{selfEnd, {selfEnd.gid, 0x12}, peerB})))
}

func (w *world) addrs(t *rapid.T) {
	w.do(given(pickIP(t, "first"), pickIP(t, "second")))
}

func (w *world) neighbours(t *rapid.T) {
	w.do(HostNeighbours{[]Neighbour{{pickIP(t, "IP"), pick(t, "MAC", worldMACs)}}})
}

// answer answers one CreateAH, not always the oldest.
func (w *world) answer(t *rapid.T) {
	if len(w.asked) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.asked)-1).Draw(t, "which")
	id := w.asked[i]
	w.asked = append(w.asked[:i], w.asked[i+1:]...)
	switch err := pick(t, "error", []error{nil, nil, hca.ErrTimeout, hca.ErrInvalid}); err {
	case nil:
		ah := &fakeAH{"ah"}
		w.held[ah] = true
		w.do(AHReady{id, ah})
	default:
		w.do(AHFailed{id, err})
	}
}

func (w *world) wait(t *rapid.T) {
	d := pick(t, "how long", []time.Duration{0, time.Millisecond, time.Second, 20 * time.Second, 400 * time.Second})
	w.trackHandles(w.advance(d))
}

// end waits until the table is at rest and checks it.
func (w *world) end(t *rapid.T) {
	w.trackHandles(w.advance(resolveTries * resolveInterval))
	s := w.table.Stats()
	if s.Resolutions != 0 || s.AHs != len(w.held) {
		t.Fatalf("at rest: %+v, %d handles held", s, len(w.held))
	}
	for e, p := range w.table.peers.live.byEndpoint {
		if got, _ := w.snap.PeerMAC(e.key()); got != p.mac {
			t.Fatalf("the data path gives %v the MAC %v, the table %v", e, got, p.mac)
		}
		d, _, ok := w.snap.Unicast(p.mac)
		if ready := p.handle.state == handleReady; ok != ready || ready && d != w.table.host.link.dest(p) {
			t.Fatalf("the data path sends packets for %v to %v, %v", e, d, ok)
		}
	}
	w.do(Detached{})
	if len(w.held) != 0 || w.table.Stats().Kept != 0 {
		t.Fatalf("detached: %d handles held, %+v", len(w.held), w.table.Stats())
	}
}

// TestErrorsAreData: an AHFailed may carry any error, wrapped or not.
func TestErrorsAreData(t *testing.T) {
	for _, err := range []error{nil, errors.New("other"), &hca.VerbError{Verb: "create_ah", Err: hca.ErrInvalid}} {
		b := attachedBench(t, Config{})
		b.meet(peerB, ipB)
		b.step(hostIP(ownMAC, b.macOf(peerB), ip(ipA), ip(ipB)))
		b.step(AHFailed{1, err})
		if b.table.Stats().AHFailed != 1 {
			t.Errorf("%v was not counted", err)
		}
	}
}
