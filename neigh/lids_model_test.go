package neigh

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// subnetModel is what the claims and paths of a subnet must do, naively.
type subnetModel struct {
	path    map[hca.GID]hca.LID // the last that was found
	asked   map[hca.GID]bool
	at      map[hca.GID]time.Time     // of the last answer
	waiting []modelClaim              // in their order
	last    map[hca.UDSource]endpoint // who was last accepted, or found, at a LID and QPN
}

type modelClaim struct {
	e   endpoint
	lid hca.LID
	ip  netip.Addr
}

// subnet drives a table and its model.
type subnet struct {
	*bench
	subnetModel
	claims  int
	asking  []uint64 // unanswered CreateAH
	reached map[ipoib.MAC]bool
}

var (
	subnetEnds = []endpoint{peerB, peerC, {peerB.gid, 0x33}, {peerC.gid, 0x22}, {gidOf("fe80::4"), 0x22}}
	subnetLIDs = []hca.LID{lidB, lidC, 0x4c, 0x50}
)

// TestSubnetAgreesWithModel: for random claims, paths and changes of LIDs, exactly the claims are delivered that the
// model accepts, in its order, each other one is dropped or kept as it says, and the data path never takes a message
// for one of a peer whose path does not lead to its LID. Handles are requested by the path that is known, and a peer that
// the data path reaches stays reachable.
func TestSubnetAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &subnet{
			bench: subnetBench(rt), reached: map[ipoib.MAC]bool{},
			subnetModel: subnetModel{
				path: map[hca.GID]hca.LID{}, asked: map[hca.GID]bool{}, at: map[hca.GID]time.Time{}, last: map[hca.UDSource]endpoint{},
			},
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { s.checkIndex() },
			"claim":   s.claim,
			"found":   s.foundPath,
			"failed":  func(t *rapid.T) { s.answer(pick(t, "path", subnetEnds).gid, 0) },
			"send":    s.send,
			"answer":  s.answerAH,
			"advance": func(t *rapid.T) { s.pass(pick(t, "time", []time.Duration{time.Millisecond, latePause, pathPause})) },
			"again": func(*rapid.T) {
				s.watch(s.step(Detached{}))
				s.waiting, s.asking, s.asked = nil, nil, map[hca.GID]bool{}
				clear(s.reached)
				s.watch(s.step(attachedToSubnet()))
				s.pass(time.Second)
			},
		})
	})
}

func (s *subnet) pass(d time.Duration) { s.watch(s.advance(d)) }

// watch checks the requests among actions, and returns the addresses of the claims that were delivered.
func (s *subnet) watch(actions []Action) (delivered []netip.Addr) {
	for _, a := range actions {
		switch a := a.(type) {
		case FindPath:
			if s.asked[a.GID] {
				s.tb.Fatalf("the path to %v is requested again before the answer", a.GID)
			}
			s.asked[a.GID] = true
		case CreateAH:
			if lid := s.path[a.DGID]; lid == 0 || a.Path.DLID.Base(testLMC) != lid {
				s.tb.Fatalf("%+v, want by LID %v", a, lid)
			}
			s.asking = append(s.asking, a.ID)
		case SendHost:
			f, _ := parseFrame(a.Frame)
			if arp, err := ipoib.ParseEtherARP(f.body()); err == nil && f.isARP() {
				delivered = append(delivered, arp.SPA)
			}
		}
	}
	return delivered
}

// claim has some port announce an address of some endpoint.
func (s *subnet) claim(t *rapid.T) {
	e, lid := pick(t, "endpoint", subnetEnds), pick(t, "LID", subnetLIDs)
	s.claims++
	c := modelClaim{e, lid, netip.AddrFrom4([4]byte{10, 1, byte(s.claims >> 8), byte(s.claims)})}
	ev := fabricARP(e, ipoib.ARPRequest, c.ip.String(), c.ip.String(), rapid.Bool().Draw(t, "multicast")).at(lid)
	before := s.table.Stats()
	// The model decides first.
	var want []netip.Addr
	why, kept := NumReason, 0
	mine := 0
	for _, w := range s.waiting {
		if w.lid == lid {
			mine++
		}
	}
	path := s.path[e.gid]
	answered, asked := s.at[e.gid]
	switch {
	case path == lid:
		want = append(want, c.ip)
		s.accept(e, lid)
	case !s.asked[e.gid] && asked && s.now.Before(answered.Add(pathPause)):
		why = s.refusal(e.gid)
	case mine >= maxClaimsPerLID:
		why = DropClaimsFull
	default:
		kept = 1
		s.waiting = append(s.waiting, c)
	}
	if got := s.watch(s.step(ev)); !slices.Equal(got, want) {
		t.Fatalf("%+v delivers %v, want %v", c, got, want)
	}
	after := s.table.Stats()
	if n := after.Kept - before.Kept; n != kept {
		t.Fatalf("%+v: %d kept, want %d", c, n, kept)
	}
	for r := range NumReason {
		if n := after.Drops[r] - before.Drops[r]; n != 0 && r != why || n != 1 && r == why {
			t.Fatalf("%+v: %d drops as %v", c, n, r)
		}
	}
	if kept == 1 && !s.asked[e.gid] {
		t.Fatalf("%+v waits for a path that is not requested", c)
	}
}

func (s *subnet) refusal(gid hca.GID) Reason {
	if s.path[gid] == 0 {
		return DropNoPath
	}
	return DropForeignLID
}

func (s *subnet) accept(e endpoint, lid hca.LID) { s.last[e.sourceAt(lid, false)] = e }

func (s *subnet) foundPath(t *rapid.T) {
	s.answer(pick(t, "path", subnetEnds).gid, pick(t, "leads to", subnetLIDs)+hca.LID(rapid.IntRange(0, 3).Draw(t, "path bits")))
}

// answer answers the request for a path, if there is one; the table may also learn of another path by itself.
func (s *subnet) answer(gid hca.GID, dlid hca.LID) {
	if s.table.lids.paths[gid] == nil || dlid == 0 && !s.asked[gid] {
		return
	}
	before := s.table.Stats()
	lid := dlid.Base(testLMC)
	if s.asked[gid], s.at[gid] = false, s.now; dlid != 0 {
		s.path[gid] = lid
		for _, p := range s.table.peers.live.byGID[gid] {
			for key, e := range s.last {
				if e == p.endpoint && key != e.sourceAt(lid, false) {
					delete(s.last, key)
				}
			}
			s.accept(p.endpoint, lid)
		}
	}
	var want []netip.Addr
	refused := uint64(0)
	s.waiting = slices.DeleteFunc(s.waiting, func(c modelClaim) bool {
		if c.e.gid == gid && s.path[gid] == c.lid {
			want = append(want, c.ip)
			s.accept(c.e, c.lid)
		} else if c.e.gid == gid {
			refused++
		}
		return c.e.gid == gid
	})
	var ev Event = PathFailed{gid}
	if dlid != 0 {
		ev = PathFound{gid, hca.UDPath{DLID: dlid}}
	}
	if got := s.watch(s.step(ev)); !slices.Equal(got, want) {
		s.tb.Fatalf("%+v delivers %v, want %v", ev, got, want)
	}
	why := s.refusal(gid)
	if n := s.table.Stats().Drops[why] - before.Drops[why]; n != refused {
		s.tb.Fatalf("%+v: %d claims refused, want %d", ev, n, refused)
	}
}

// send has the host send to some peer.
func (s *subnet) send(t *rapid.T) {
	e := pick(t, "to", subnetEnds)
	if s.table.peers.live.byEndpoint[e] != nil {
		s.watch(s.sendTo(e, ipB))
	}
}

func (s *subnet) answerAH(t *rapid.T) {
	if len(s.asking) == 0 {
		return
	}
	id := s.asking[0]
	s.asking = s.asking[1:]
	if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
		s.watch(s.step(AHFailed{id, hca.ErrTimeout}))
		return
	}
	s.watch(s.step(AHReady{id, &fakeAH{fmt.Sprintf("ah%d", id)}}))
}

// forget has the model forget what the table has forgotten: the path to a port without a peer, some time after the
// answer.
func (s *subnet) forget() {
	for gid := range s.at {
		if s.table.lids.paths[gid] != nil {
			continue
		}
		if len(s.table.peers.live.byGID[gid]) > 0 || s.asked[gid] || s.now.Before(s.at[gid].Add(pathPause)) {
			s.tb.Fatalf("the path to %v is forgotten", gid)
		}
		delete(s.at, gid)
		delete(s.path, gid)
	}
}

// checkIndex compares the index by LID with the model, and the data path with the index.
func (s *subnet) checkIndex() {
	s.forget()
	for key, e := range s.last {
		if s.table.peers.live.byEndpoint[e] == nil { // removed
			delete(s.last, key)
		}
	}
	for _, lid := range subnetLIDs {
		for _, qpn := range []hca.QPN{0x22, 0x33} {
			from := hca.UDSource{LID: lid, QPN: qpn}
			e, known := s.last[from]
			p := s.table.peers.live.byLID[from]
			if known != (p != nil) || known && p.endpoint != e {
				s.tb.Fatalf("at LID %v and QPN %v is %+v, want %v, %t", lid, qpn, p, e, known)
			}
			if known && s.path[e.gid] != lid {
				s.tb.Fatalf("at LID %v is %v, whose path leads to %v", lid, e, s.path[e.gid])
			}
			if s.table.view.dirty {
				continue // the data path sees it later
			}
			mac, bytes := s.snap.PeerMAC(from)
			if known != (bytes != nil) || known && mac != p.mac {
				s.tb.Fatalf("the data path has %v, %t, at LID %v and QPN %v, want %v, %t", mac, bytes != nil, lid, qpn, e, known)
			}
		}
	}
	for _, p := range s.table.peers.live.byEndpoint {
		_, _, ok := s.snap.Unicast(p.mac)
		if s.reached[p.mac] && !ok {
			s.tb.Fatalf("the data path no longer reaches %v", p.endpoint)
		}
		s.reached[p.mac] = ok
	}
}
