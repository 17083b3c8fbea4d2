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
		if _, ok := events[failed]; ok == (from == ready) {
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
	for _, s := range []state{asking, offered, given, kept, waiting, building, ready, owner, out} {
		if !reached[s] {
			t.Errorf("%s cannot be reached", s)
		}
	}
	if got := slices.Sorted(maps.Keys(sent)); !slices.Equal(got, []string{"", "offer", "taken", "withdrawn", "yours"}) {
		t.Errorf("messages %q", got)
	}
}

// All runs of a giver and a taker, each of which may fail or die at any step, and whose connection
// breaks then, end with exactly one owner: the giver, the taker, or, if the owner itself has died, nobody
// else. The channels are those of a stream: what was sent before the end is received before the end.
func TestExactlyOneOwner(t *testing.T) {
	runs, seen := map[world]bool{}, map[[2]state]int{}
	explore(t, world{giver: asking, taker: waiting}, runs, seen)
	t.Logf("%d states of both sides, ends: %v", len(runs), seen)
	if len(seen) < 4 {
		t.Errorf("ends %v, want at least four", seen)
	}
}

// world is the state of both sides, with what is under way. A message is a letter.
type world struct {
	giver, taker         state
	giverDead, takerDead bool
	toTaker, toGiver     string // of o, y, w; of t
}

var letters = map[string]string{"offer": "o", "yours": "y", "withdrawn": "w", "taken": "t", "": ""}

var words = map[byte]event{'o': gotOffer, 'y': gotYours, 'w': gotWithdraw, 't': gotTaken}

func explore(t *testing.T, w world, runs map[world]bool, seen map[[2]state]int) {
	if runs[w] {
		return
	}
	runs[w] = true
	giverEnd, takerEnd := w.giver.final() || w.giverDead, w.taker.final() || w.takerDead
	if giverEnd && takerEnd {
		seen[[2]state{w.giver, w.taker}]++
		owns := w.giver != given && !w.giverDead
		takes := w.taker == owner && !w.takerDead
		if owns && takes {
			t.Errorf("both own everything: %+v", w)
		}
		if !owns && !takes && !w.giverDead && !w.takerDead {
			t.Errorf("nobody owns anything: %+v", w)
		}
		return // if an owner has died, the next start adopts the interfaces
	}
	if !giverEnd {
		dead := w
		dead.giverDead = true
		explore(t, dead, runs, seen)
		if w.giver == asking {
			explore(t, w.giverDoes(prepared), runs, seen)
			explore(t, w.giverDoes(failed), runs, seen)
		} else {
			explore(t, w.giverDoes(late), runs, seen)
		}
		switch {
		case w.giver == asking: // it does not read
		case w.toGiver != "":
			next := w.giverDoes(words[w.toGiver[0]])
			next.toGiver = w.toGiver[1:]
			if next.giver == given && w.takerDead { // the kernel refuses the message
				next.giver = kept
			}
			explore(t, next, runs, seen)
		case w.takerDead || w.taker.final():
			explore(t, w.giverDoes(broken), runs, seen)
		}
	}
	if takerEnd {
		return
	}
	dead := w
	dead.takerDead = true
	explore(t, dead, runs, seen)
	for _, e := range map[state][]event{waiting: {failed, late}, building: {prepared, failed}}[w.taker] {
		explore(t, w.takerDoes(e), runs, seen)
	}
	if w.taker == building {
		return // it does not read
	}
	switch {
	case w.toTaker != "":
		next := w.takerDoes(words[w.toTaker[0]])
		next.toTaker = w.toTaker[1:]
		explore(t, next, runs, seen)
	case w.giverDead || w.giver.final():
		explore(t, w.takerDoes(broken), runs, seen)
	}
}

func (w world) giverDoes(e event) world {
	w.toTaker += letters[w.giver.becomes(e)]
	return w
}

func (w world) takerDoes(e event) world {
	w.toGiver += letters[w.taker.becomes(e)]
	return w
}
