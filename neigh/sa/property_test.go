package sa

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// world drives a client with random events, against a subnet manager that loses, delays and repeats MADs, restarts, and
// shares the port with the kernel.
type world struct {
	*bench
	tb     *testing.T
	rng    *rand.Rand
	subnet *subnet
	view   Port
	kernel map[hca.GID]bool // groups
	loss   int              // MADs lost in each direction, of 100
	wanted map[hca.GID]map[Owner]bool
	joined map[hca.GID]map[Owner]Group // by the actions
	excess map[hca.GID]bool            // memberships that the client may leave behind
	asked  map[PathKey]bool            // paths that a PathFound or PathFailed is due for
	air    []Received                  // answers under way
	events int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		bench: newBench(t, seed), tb: t, rng: rand.New(rand.NewPCG(seed, 2)), subnet: newSubnet(), view: activePort,
		wanted: map[hca.GID]map[Owner]bool{}, joined: map[hca.GID]map[Owner]Group{}, excess: map[hca.GID]bool{},
		asked: map[PathKey]bool{},
	}
	for n := range 6 {
		w.subnet.hosts[hostOf(n)] = uint16(100 + n)
	}
	return w
}

// act does the actions, and what follows from them.
func (w *world) act(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			w.send(a)
		case Joined:
			if !w.wanted[a.MGID][a.Owner] {
				w.tb.Fatalf("Joined for %d, which does not want %v", a.Owner, a.MGID)
			}
			if w.joined[a.MGID] == nil {
				w.joined[a.MGID] = map[Owner]Group{}
			}
			w.joined[a.MGID][a.Owner] = a.Group
		case JoinFailed:
			delete(w.joined[a.MGID], a.Owner)
		case Left:
			if len(w.wanted[a.MGID]) > 0 {
				w.tb.Fatalf("%v is left, but wanted by %v", a.MGID, w.wanted[a.MGID])
			}
		case PathFound:
			delete(w.asked, a.Key)
			if w.rng.IntN(8) == 0 {
				w.do(RefreshPath{a.Key})
			}
		case PathFailed:
			delete(w.asked, a.Key)
		}
	}
}

func (w *world) do(ev Event) {
	w.events++
	w.act(w.step(ev))
}

// send passes a MAD to the subnet manager, and puts its answer on the way back.
func (w *world) send(a Send) {
	h, member, _ := parse(w.tb, a.MAD)
	if h.Method == mad.MethodDelete && (member.MGID == broadcastOf(member.MGID) || w.kernel[member.MGID]) {
		w.tb.Fatalf("Delete of %v, kernel %v", member.MGID, w.kernel)
	}
	if a.DLID != w.view.SMLID {
		w.tb.Fatalf("Send to %d, want the subnet manager at %d", a.DLID, w.view.SMLID)
	}
	if a.DLID != w.subnet.lid || w.lost() {
		return
	}
	answer := answerTo(w.subnet, a)
	for range 1 + w.rng.IntN(8)/7 {
		if !w.lost() {
			w.air = append(w.air, answer)
		}
	}
}

func (w *world) lost() bool { return w.rng.IntN(100) < w.loss }

// arrive delivers some of the answers, not always in order.
func (w *world) arrive(some bool) {
	for len(w.air) > 0 {
		if some && w.rng.IntN(3) == 0 {
			return
		}
		i := w.rng.IntN(min(3, len(w.air)))
		ev := w.air[i]
		w.air = slices.Delete(w.air, i, i+1)
		w.do(ev)
	}
}

// wait lets time pass, with a deadline or an arrival at a time.
func (w *world) wait(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.act(w.next(end))
		w.arrive(true)
	}
}

func (w *world) randomGroup() hca.GID {
	pkey := hca.PKey(0xffff)
	if w.rng.IntN(4) == 0 {
		pkey = 0x8001
	}
	if w.rng.IntN(3) == 0 {
		return allOf(pkey)
	}
	return groupOf(1+w.rng.IntN(4), pkey)
}

var refusals = []mad.Status{
	mad.StatusBusy, mad.StatusNoResources, mad.StatusInsufficientComponents, mad.StatusDenied, mad.StatusRedirect,
}

// event does one random thing.
func (w *world) event() {
	owner, g := Owner(w.rng.IntN(3)), w.randomGroup()
	switch w.rng.IntN(24) {
	case 0, 1, 2, 3:
		if w.wanted[g] == nil {
			w.wanted[g] = map[Owner]bool{}
		}
		w.wanted[g][owner] = true
		w.do(Join{Owner: owner, MGID: g, SendOnly: w.rng.IntN(3) == 0})
	case 4, 5, 6:
		if len(w.wanted[g]) == 1 && w.wanted[g][owner] && (w.kernel[g] || g == broadcastOf(g)) {
			w.excess[g] = true
		}
		delete(w.wanted[g], owner)
		delete(w.joined[g], owner)
		w.do(Leave{Owner: owner, MGID: g})
	case 7, 8, 9:
		key := PathKey{DGID: hostOf(w.rng.IntN(8)), PKey: 0xffff}
		w.asked[key] = true
		w.do(WantPath{key})
	case 10:
		w.restart()
	case 11:
		w.portGoes(hca.PortDown)
		w.wait(time.Duration(w.rng.IntN(2)) * time.Second)
		w.portGoes(hca.PortActive)
	case 12:
		w.do([]Event{Reregister{}, SMChange{}, LIDChange{}}[w.rng.IntN(3)])
	case 13:
		w.kernelChanges()
	case 14:
		w.loss = w.rng.IntN(80)
	case 15:
		w.subnet.refuse = refusals[w.rng.IntN(len(refusals))]
		w.subnet.refuses = w.rng.IntN(4)
		if w.subnet.refuse != mad.StatusBusy { // a refusal of a group means that there is no membership
			w.restart()
		}
	case 16:
		w.move()
	case 17:
		w.forge()
	default:
		w.wait(time.Duration(w.rng.IntN(1000)) * time.Millisecond)
	}
}

// restart makes the subnet manager forget, and announce that. The broadcast groups may have other MLIDs then.
func (w *world) restart() {
	w.subnet.restart()
	w.excess = map[hca.GID]bool{}
	for _, pkey := range []hca.PKey{0xffff, 0x8001} {
		rec := w.subnet.groups[allOf(pkey)]
		rec.MLID = 0xc000 + uint16(w.rng.IntN(2))<<8 + uint16(pkey&1)
		w.subnet.groups[rec.MGID] = rec
	}
	w.do(Reregister{})
}

// portGoes changes the state of the port; the subnet manager drops the memberships of one that is down.
func (w *world) portGoes(state hca.PortState) {
	w.view.State = state
	if state == hca.PortDown {
		w.subnet.restart()
		w.excess = map[hca.GID]bool{}
		w.air = nil
	}
	w.do(w.view)
}

// kernelChanges makes the kernel want other groups. It leaves those that it no longer wants in the port's name.
func (w *world) kernelChanges() {
	before := w.kernel
	w.kernel = map[hca.GID]bool{}
	var ev KernelGroups
	for _, g := range w.client.Groups() {
		if g.MGID != broadcastOf(g.MGID) && w.rng.IntN(2) == 0 {
			w.kernel[g.MGID] = true
			ev.MGIDs = append(ev.MGIDs, g.MGID)
			if len(g.Owners) == 0 {
				w.excess[g.MGID] = true
			}
		}
	}
	for g := range before {
		if !w.kernel[g] {
			delete(w.subnet.members, g)
			delete(w.excess, g)
		}
	}
	w.do(ev)
}

// move makes another subnet manager take over.
func (w *world) move() {
	w.subnet.lid = 3 - w.subnet.lid
	w.subnet.restart()
	w.excess = map[hca.GID]bool{}
	w.view.SMLID = w.subnet.lid
	w.do(w.view)
}

// forge delivers a MAD that is not an answer.
func (w *world) forge() {
	ev := Received{MAD: make([]byte, mad.Len-w.rng.IntN(2)), SLID: uint16(w.rng.IntN(3)), SrcQPN: hca.QPN(w.rng.IntN(3))}
	h := mad.NewRequest(mad.MethodGetResp, mad.AttrPathRecord, w.rng.Uint64(), 0)
	h.Put(ev.MAD)
	w.do(ev)
}

// rest lets everything settle, and compares.
func (w *world) rest() {
	w.loss, w.subnet.refuses = 0, 0
	if w.view.State != hca.PortActive {
		w.portGoes(hca.PortActive)
	}
	for range 90 {
		w.wait(time.Second)
		w.arrive(false)
	}
	held, possible := map[hca.GID]mad.JoinState{}, map[hca.GID]mad.JoinState{}
	for _, g := range w.client.Groups() {
		if len(w.wanted[g.MGID]) != len(g.Owners) {
			w.tb.Fatalf("%v has the owners %v, want %v", g.MGID, g.Owners, w.wanted[g.MGID])
		}
		possible[g.MGID] = g.JoinState
		if g.State == "waiting" && len(w.wanted[broadcastOf(g.MGID)]) == 0 {
			continue // the answer to a former join may have been lost
		}
		if g.State != "joined" {
			w.tb.Fatalf("%v is %s, %v (%v)", g.MGID, g.State, g.Reason, g.Status)
		}
		held[g.MGID] = g.JoinState
		for _, o := range g.Owners {
			if w.joined[g.MGID][o] != g.Group || g.Group.MLID != w.subnet.groups[g.MGID].MLID {
				w.tb.Fatalf("owner %d of %v has heard %+v, want %+v, MLID %#x",
					o, g.MGID, w.joined[g.MGID][o], g.Group, w.subnet.groups[g.MGID].MLID)
			}
		}
	}
	for g, state := range held {
		if w.subnet.members[g]&state != state {
			w.tb.Fatalf("%v: the subnet manager has %d, the client %d", g, w.subnet.members[g], state)
		}
	}
	for g, state := range w.subnet.members {
		if possible[g] == 0 && !w.excess[g] {
			w.tb.Fatalf("%v: the subnet manager has %d, the client nothing", g, state)
		}
	}
	if s := w.client.Stats(); s.Outstanding+s.Queued > 0 || len(w.asked) > 0 {
		w.tb.Fatalf("%d requests outstanding, %d queued, %d paths without an answer", s.Outstanding, s.Queued, len(w.asked))
	}
}

// For 100,000 random events, the actions never break a rule, and at every rest the memberships are those of the subnet
// manager.
func TestWorld(t *testing.T) {
	events := 100_000
	if testing.Short() {
		events /= 10
	}
	const seeds = 20
	for seed := range uint64(seeds) {
		w := newWorld(t, seed)
		w.do(w.view)
		for w.events < events/seeds {
			for range 1 + w.rng.IntN(60) {
				w.event()
			}
			w.rest()
		}
	}
}
