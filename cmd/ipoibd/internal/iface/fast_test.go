package iface

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud/ipoib"
)

// fakeFast is a fast path that records the calls of its user.
type fakeFast struct {
	hca.FastPath
	name    string
	notes   []string
	held    int
	full    bool
	moved   bool // the destinations of peers have changed
	refused error
	counts  map[ipoib.MAC]hca.FastPathCounts
}

func (p *fakeFast) note(text string) { p.notes = append(p.notes, text) }

func (p *fakeFast) AddPeer(mac [6]byte, to hca.UDDest) error {
	if p.full {
		return hca.ErrNoMemory
	}
	p.note(fmt.Sprintf("set %d at %d", mac[5], to.QPN))
	return nil
}

func (p *fakeFast) Renew(mac [6]byte, to hca.UDDest) bool {
	p.note(fmt.Sprintf("renew %d at %d", mac[5], to.QPN))
	return !p.moved
}

func (p *fakeFast) RemovePeer(mac [6]byte) (hca.FastPathCounts, error) {
	p.note(fmt.Sprintf("remove %d", mac[5]))
	return p.counts[mac], nil
}

func (p *fakeFast) PeerCounts(mac [6]byte) (hca.FastPathCounts, bool) {
	c, ok := p.counts[mac]
	return c, ok
}

func (p *fakeFast) Refused() error { return p.refused }

func (p *fakeFast) Hold()        { p.held++ }
func (p *fakeFast) Release()     { p.held-- }
func (p *fakeFast) Posted(i int) { p.note(fmt.Sprintf("posted %d", i)) }

func (p *fakeFast) Counters() []hca.Counter {
	return []hca.Counter{{Name: "tx_packets", Kind: hca.CountTotal, Value: 10}, {Name: "refused", Kind: hca.CountGauge, Value: 1}}
}

// wants compares the notes with what is expected, in any order, and clears them.
func (p *fakeFast) wants(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(p.notes)
	if !slices.Equal(p.notes, want) {
		t.Errorf("%s: %q, want %q", p.name, p.notes, want)
	}
	p.notes = nil
}

// fastTable is a peer table whose snapshots a fast path follows.
type fastTable struct {
	*testing.T
	*fast
	table *neigh.Table
	now   time.Time
	epoch uint64
	qpn   hca.QPN
}

type fakeHandle struct {
	hca.AH
	name string
}

func newFastTable(t *testing.T) *fastTable {
	b := &fastTable{T: t, fast: &fast{log: slog.New(slog.DiscardHandler)}, table: neigh.New(neigh.Config{}), now: time.Unix(1e9, 0), qpn: 100}
	b.step(neigh.HostMAC{MAC: ipoib.MAC{2, 0, 0, 0, 0, 1}})
	b.step(neigh.Attached{Self: ipoib.NewAddr(99, gidOf(99)), Broadcast: hca.UDDest{AH: &fakeHandle{name: "all"}}, QKey: 7, MTU: 1500})
	return b
}

func gidOf(n byte) hca.GID { return hca.GID{0: 0x20, 15: n} }

func addrOf(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, n}) }

func (b *fastTable) step(ev neigh.Event) (events []neigh.Event) {
	for todo := []neigh.Event{ev}; len(todo) > 0; todo = todo[1:] {
		for _, a := range b.table.Step(b.now, todo[0], nil) {
			switch a := a.(type) {
			case neigh.CreateAH:
				todo = append(todo, neigh.AHReady{ID: a.ID, AH: &fakeHandle{name: a.DGID.String()}})
			case neigh.Publish:
				events = b.publish(a.Snapshot, events)
				b.epoch = a.Snapshot.Epoch()
			}
		}
	}
	return events
}

// meet makes the host send to a peer.
func (b *fastTable) meet(n byte) {
	arp := ipoib.ARP{Op: ipoib.ARPRequest, SHA: ipoib.NewAddr(b.qpn+hca.QPN(n), gidOf(n)), SPA: addrOf(n), TPA: addrOf(n)}
	msg := arp.Append([]byte{0x08, 0x06, 0, 0})
	b.step(neigh.FromFabric{Msg: msg, From: hca.UDSource{GID: gidOf(n), QPN: b.qpn + hca.QPN(n)}, Multicast: true})
	for _, p := range b.table.Peers() {
		if p.GID == gidOf(n) {
			frame := append(append(append([]byte{}, p.MAC[:]...), 2, 0, 0, 0, 0, 1, 0x08, 0x00), make([]byte, 20)...)
			frame[14] = 0x45
			b.step(neigh.FromHost{Frame: frame})
		}
	}
	b.now = b.now.Add(time.Second)
	b.step(neigh.Tick{})
}

// A fast path gets each peer once no frame can be on its way by an earlier snapshot, and loses it before the lanes do. Each
// new fast path gets all of them. Their traffic is reported once, also the last of a peer or a fast path that goes.
func TestFastPathFollowsThePeers(t *testing.T) {
	b := newFastTable(t)
	b.meet(1)
	first := &fakeFast{name: "first", counts: map[ipoib.MAC]hca.FastPathCounts{}}
	b.use(endpoint.FastPath{Path: first})
	b.handOver(b.epoch - 1)
	first.wants(t)
	b.handOver(b.epoch)
	b.meet(2)
	b.handOver(b.epoch)
	macs := slices.Collect(maps.Keys(b.peers))
	if len(macs) != 2 {
		t.Fatalf("%d peers, want 2: %q", len(macs), first.notes)
	}
	if len(first.notes) != 2 {
		t.Errorf("%q, want two peers", first.notes)
	}
	first.notes = nil

	first.counts[macs[0]] = hca.FastPathCounts{TxPackets: 2, TxBytes: 2 * 86, RxPackets: 1, RxBytes: 46}
	b.now = b.now.Add(time.Minute)
	want := neigh.Carried{MAC: macs[0], Sent: 2 * 86, Heard: 46}
	if got := b.traffic(b.now); !slices.Equal(got, []neigh.Event{want}) {
		t.Errorf("traffic %+v, want %+v", got, want)
	}
	if !b.resting(b.now.Add(time.Hour)) || b.resting(b.now) {
		t.Error("the fast path rests although it carries, or never")
	}
	if got := b.traffic(b.now.Add(time.Minute)); len(got) > 0 {
		t.Errorf("the same traffic again: %+v", got)
	}

	second := &fakeFast{name: "second", full: true}
	first.counts[macs[1]] = hca.FastPathCounts{TxPackets: 1, TxBytes: 86}
	if got := b.use(endpoint.FastPath{Path: second}); !slices.Equal(got, []neigh.Event{neigh.Carried{MAC: macs[1], Sent: 86}}) {
		t.Errorf("last traffic: %+v", got)
	}
	if got := b.use(endpoint.FastPath{Path: second}); got != nil || len(b.due) != 2 {
		t.Errorf("used again: %+v, %d peers are due", got, len(b.due))
	}
	b.handOver(b.epoch)
	second.wants(t)
	if len(b.due)+len(b.peers) > 0 {
		t.Errorf("%d peers due, %d handed over to a full fast path", len(b.due), len(b.peers))
	}

	third := &fakeFast{name: "third", counts: map[ipoib.MAC]hca.FastPathCounts{macs[0]: {RxPackets: 1, RxBytes: 50}}}
	b.use(endpoint.FastPath{Path: third})
	b.handOver(b.epoch)
	third.notes = nil
	events := b.step(neigh.Detached{})
	if len(third.notes) != 2 || !slices.Equal(events, []neigh.Event{neigh.Carried{MAC: macs[0], Heard: 50}}) {
		t.Errorf("%q, events %+v, want the removal of two peers, and the last traffic of one", third.notes, events)
	}
	c := report.Counters{}
	b.count(c)
	if c["fast_tx_packets"].Value != 30 || c["fast_refused"].Value != 1 {
		t.Errorf("counters %+v, want those of all three, but the last gauge", c)
	}
}

// A peer that is silent while the host sends gets another handle, and stays on the fast path if that is for the same
// destination.
func TestFastPathKeepsAPeerWithAnotherHandle(t *testing.T) {
	for _, moved := range []bool{false, true} {
		b := newFastTable(t)
		b.meet(1)
		path := &fakeFast{name: fmt.Sprintf("moved %t", moved), moved: moved}
		b.use(endpoint.FastPath{Path: path})
		b.handOver(b.epoch)
		mac := slices.Collect(maps.Keys(b.peers))[0]
		path.notes = nil
		for range 30 { // seconds; a handle is renewed when it is ten seconds old
			b.step(neigh.Carried{MAC: mac, Sent: 64})
			b.now = b.now.Add(time.Second)
			b.step(neigh.Tick{})
			b.handOver(b.epoch)
			if len(path.notes) > 0 {
				break
			}
		}
		renewed := fmt.Sprintf("renew %d at 101", mac[5])
		if moved {
			path.wants(t, fmt.Sprintf("remove %d", mac[5]), renewed, fmt.Sprintf("set %d at 101", mac[5]))
		} else {
			path.wants(t, renewed)
		}
	}
}

// A fast path is held as long as there is a reason, also one that comes when there already is one.
func TestFastPathIsHeld(t *testing.T) {
	b := newFastTable(t)
	b.setHold(holdCapture, true)
	path := &fakeFast{}
	b.use(endpoint.FastPath{Path: path})
	for _, c := range []struct {
		why  holdReason
		on   bool
		held int
	}{
		{holdCapture, true, 1}, {holdSources, true, 1}, {holdCapture, false, 1}, {holdSources, false, 0}, {holdSources, false, 0},
	} {
		if b.setHold(c.why, c.on); path.held != c.held {
			t.Errorf("reason %d, %t: held %d times, want %d", c.why, c.on, path.held, c.held)
		}
	}
	b.step(neigh.HostPort{Up: true, Bridge: 7, Master: ipoib.MAC{2, 7}})
	if path.held != 1 {
		t.Error("not held for a bridge")
	}
	b.posted(3)
	path.wants(t, "posted 3")
	b.use(endpoint.FastPath{Err: errors.New("no reason")})
	if b.lacking() != "no reason" {
		t.Errorf("lacking: %q", b.lacking())
	}
	path.refused = errors.New("refused")
	if b.use(endpoint.FastPath{Path: path}); b.lacking() != "refused" {
		t.Errorf("lacking: %q", b.lacking())
	}
}
