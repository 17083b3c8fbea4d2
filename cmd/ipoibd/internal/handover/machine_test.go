package handover

import (
	"maps"
	"slices"
	"testing"
)

// Both machines are total: each state either is final or knows what a failure and a broken connection
// lead to, every state can be reached, and only the messages of the protocol are sent.
func TestMachinesAreTotal(t *testing.T) {
	reached := map[state]bool{asking: true, waiting: true}
	sent := map[string]bool{}
	for from, events := range steps {
		if from.final() {
			t.Errorf("%s is final, but has steps", from)
		}
		if _, ok := events[broken]; !ok {
			t.Errorf("%s has no step for a broken connection", from)
		}
		if _, ok := events[failed]; ok == (from == ready || from == leaving || from == keeping) {
			t.Errorf("%s: a step for a failure: %v", from, ok)
		}
		for e, next := range events {
			if _, ok := steps[next.to]; !ok && !next.to.final() {
				t.Errorf("%s leads to %q on %q, which is no state", from, next.to, e)
			}
			reached[next.to] = true
			sent[next.send] = true
		}
	}
	for _, s := range []state{asking, offering, offered, giving, given, keeping, kept, waiting, building, ready, leaving, owner, out} {
		if !reached[s] {
			t.Errorf("%s cannot be reached", s)
		}
	}
	if got := slices.Sorted(maps.Keys(sent)); !slices.Equal(got, []string{"", "offer", "taken", "withdrawn", "yours"}) {
		t.Errorf("messages %q", got)
	}
}

// All runs of a giver and a taker, each of which may fail, be late, be told to end, or die at any step,
// over a connection with little room: at any moment, at most one of them owns everything, and at the end
// exactly one, or, if the owner itself has died, none. The channels are those of a stream: what was
// sent before the end is received before the end.
func TestExactlyOneOwner(t *testing.T) {
	for room := 1; room <= len(parts["offer"])+1; room++ {
		x := explorer{t, room, map[world]bool{}, map[[2]state]int{}}
		x.explore(world{giver: asking, taker: waiting})
		t.Logf("room for %d letters: %d states of both sides, ends: %v", room, len(x.runs), x.ends)
		if len(x.ends) < 4 {
			t.Errorf("ends %v, want at least four", x.ends)
		}
	}
}

// world is the state of both sides, with what is under way. A letter is a part of a message.
type world struct {
	giver, taker         state
	giverDead, takerDead bool
	unsent               string // of the giver's message
	toTaker, toGiver     string
}

// parts are the letters of the messages; the last one completes its message.
var parts = map[string]string{"offer": "123", "yours": "y", "withdrawn": "w", "taken": "t", "": ""}

var words = map[byte]event{'3': gotOffer, 'y': gotYours, 'w': gotWithdraw, 't': gotTaken}

type explorer struct {
	t    *testing.T
	room int // for letters to the taker
	runs map[world]bool
	ends map[[2]state]int
}

func (x *explorer) explore(w world) {
	if x.runs[w] {
		return
	}
	x.runs[w] = true
	giverEnd, takerEnd := w.giver.final() || w.giverDead, w.taker.final() || w.takerDead
	owns, takes := w.giver != given && !w.giverDead, w.taker == owner && !w.takerDead
	if owns && takes {
		x.t.Errorf("both own everything: %+v", w)
	}
	if giverEnd && takerEnd {
		x.ends[[2]state{w.giver, w.taker}]++
		if !owns && !takes && !w.giverDead && !w.takerDead {
			x.t.Errorf("neither owns anything: %+v", w)
		}
		return // if an owner has died, the next start adopts the interfaces
	}
	if !giverEnd {
		x.giver(w, takerEnd)
	}
	if !takerEnd {
		x.taker(w, giverEnd)
	}
}

// giver explores what the giver can do.
func (x *explorer) giver(w world, takerEnd bool) {
	dead := w
	dead.giverDead = true
	x.explore(dead)
	switch refuses := takerEnd || w.taker == leaving; { // the kernel refuses what is sent then
	case w.giver == asking:
		x.explore(w.giverDoes(prepared))
		x.explore(w.giverDoes(failed))
	case w.giver == offered:
		x.explore(w.giverDoes(late))
		if w.toGiver != "" {
			next := w
			next.toGiver = w.toGiver[1:]
			x.explore(next.giverDoes(words[w.toGiver[0]]))
		} else if takerEnd {
			x.explore(w.giverDoes(broken))
		}
	case refuses:
		x.explore(w.giverDoes(broken))
	case len(w.toTaker) < x.room:
		next := w
		next.toTaker, next.unsent = w.toTaker+w.unsent[:1], w.unsent[1:]
		if next.unsent == "" {
			next = next.giverDoes(sent)
		}
		x.explore(next)
	}
	if w.giver == offering || w.giver == giving && len(w.toTaker) == x.room {
		x.explore(w.giverDoes(late))
	}
}

// taker explores what the taker can do.
func (x *explorer) taker(w world, giverEnd bool) {
	dead := w
	dead.takerDead = true
	x.explore(dead)
	for _, e := range map[state][]event{waiting: {failed, late}, building: {prepared, failed}, ready: {ended}}[w.taker] {
		next := w
		next.toGiver += parts[next.taker.becomes(e)]
		x.explore(next)
	}
	switch {
	case w.taker == building: // it does not read
	case w.toTaker != "":
		next := w
		next.toTaker = w.toTaker[1:]
		if e, ok := words[w.toTaker[0]]; ok {
			next.taker.becomes(e)
		}
		x.explore(next)
	case giverEnd:
		w.taker.becomes(broken)
		x.explore(w)
	}
}

func (w world) giverDoes(e event) world {
	w.unsent = parts[w.giver.becomes(e)]
	return w
}

// final reports whether a side has come to its end.
func (s state) final() bool { return s == given || s == kept || s == owner || s == out }
