package reset

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// TestR11R15R16Explore runs real servers and clients, joined by byte streams,
// through every interleaving that its budgets allow, breadth first over canonical
// states. It checks that
//   - no reset begins while a client that holds the device is neither ready nor
//     out of grace, and never while another process holds it;
//   - every client is told of each phase once: Release and Restart alternate;
//   - no state is without a way to rest without further mishap, rest being:
//     idle, everybody connected and running, nothing asked for, nothing to read.
func TestR11R15R16Explore(t *testing.T) {
	for _, c := range []struct {
		name  string
		start *world
	}{
		{"one", newWorld(1, budget{requests: 2, crashes: 1, restarts: 1, halves: 1, breaks: 1, leaves: 1, timers: 2})},
		{"two/crash", newWorld(2, budget{requests: 1, crashes: 1, timers: 1})},
		{"two/restart", joined(t, 2, budget{requests: 1, crashes: 1, restarts: 1, timers: 1})},
		{"two/broken", joined(t, 2, budget{requests: 1, halves: 1, breaks: 1, timers: 1})},
		{"two/again", joined(t, 2, budget{requests: 2, leaves: 1, timers: 2})},
		{"three/join", newWorld(3, budget{requests: 1})},
		{"three/crash", joined(t, 3, budget{requests: 1, crashes: 1, timers: 1})},
		{"three/half", joined(t, 3, budget{requests: 1, halves: 1, timers: 1})},
		{"three/break", joined(t, 3, budget{requests: 1, breaks: 1, timers: 1})},
		{"three/leave", joined(t, 3, budget{requests: 1, leaves: 1, timers: 1})},
		{"three/crash twice", joined(t, 3, budget{requests: 1, crashes: 2})},
		{"three/crash, half", joined(t, 3, budget{requests: 1, crashes: 1, halves: 1})},
	} {
		t.Run(c.name, func(t *testing.T) { explore(t, c.start) })
	}
}

// joined returns a world in which everybody has joined and the settle time is
// over.
func joined(t *testing.T, n int, have budget) *world {
	t.Helper()
	w := newWorld(n, have)
	for i := range n {
		do(t, w, move{mDial, i}, move{mUp, i})
	}
	for i := range n {
		for len(w.procs[i].down) > 0 {
			do(t, w, move{mDown, i})
		}
	}
	do(t, w, move{mSettle, 0})
	return w
}

func do(t *testing.T, w *world, moves ...move) {
	t.Helper()
	for _, m := range moves {
		if err := w.do(m); err != nil {
			t.Fatal(m, err)
		}
	}
}

// graph has the states; back has the moves that are no mishaps, backwards.
type graph struct {
	number map[string]int
	parent []int
	by     []string
	back   [][]int32
	rest   []int
}

func (g *graph) add(w *world, parent int, by string) (int, bool) {
	key := w.key()
	if n, ok := g.number[key]; ok {
		return n, false
	}
	n := len(g.parent)
	g.number[key] = n
	g.parent, g.by, g.back = append(g.parent, parent), append(g.by, by), append(g.back, nil)
	if w.atRest() {
		g.rest = append(g.rest, n)
	}
	return n, true
}

// path tells how a state came about.
func (g *graph) path(n int) (out string) {
	for ; n > 0; n = g.parent[n] {
		out = "\n  " + g.by[n] + out
	}
	return out
}

type pending struct {
	w *world
	n int
}

func explore(t *testing.T, start *world) {
	g := &graph{number: map[string]int{}}
	began, transitions := time.Now(), 0
	g.add(start, -1, "")
	queue := []pending{{start, 0}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, move := range at.w.moves() {
			next := at.w.clone()
			if err := next.do(move); err != nil {
				t.Fatalf("%v, after%s\n  %s", err, g.path(at.n), move)
			}
			transitions++
			n, fresh := g.add(next, at.n, move.String())
			if !move.mishap() {
				g.back[n] = append(g.back[n], int32(at.n))
			}
			if fresh {
				queue = append(queue, pending{next, n})
			}
		}
	}
	t.Logf("%d states, %d transitions, %d at rest, %.1fs", len(g.parent), transitions, len(g.rest), time.Since(began).Seconds())
	g.checkNoDeadlock(t)
}

// checkNoDeadlock walks backwards from rest: what it does not reach is stuck.
func (g *graph) checkNoDeadlock(t *testing.T) {
	reaches := make([]bool, len(g.parent))
	todo := append([]int(nil), g.rest...)
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if reaches[n] {
			continue
		}
		reaches[n] = true
		for _, from := range g.back[n] {
			todo = append(todo, int(from))
		}
	}
	for n, ok := range reaches {
		if !ok {
			t.Fatalf("state %d never comes to rest, after%s", n, g.path(n))
		}
	}
}

// TestExploreSees makes sure that the exploration can fail: it must see a server
// that does not wait.
func TestExploreSees(t *testing.T) {
	w := joined(t, 2, budget{requests: 1})
	for _, c := range w.server.clients {
		c.ready = true // a lie
	}
	w.server.request()
	if err := w.checkReset(Reset{Reset: 1}); err == nil {
		t.Error("a reset under a client that holds the device was not seen")
	}
}

// Every kind of move is taken somewhere, so none of them is idle.
func TestExploreMoves(t *testing.T) {
	w := newWorld(2, budget{requests: 1, crashes: 1, restarts: 1, halves: 1, breaks: 1, leaves: 1, timers: 1})
	seen, keys := map[moveKind]bool{}, map[string]bool{}
	for queue := []*world{w}; len(queue) > 0 && len(seen) < int(numMove); queue = queue[1:] {
		for _, m := range queue[0].moves() {
			next := queue[0].clone()
			if err := next.do(m); err != nil {
				t.Fatal(err)
			}
			seen[m.kind] = true
			if k := next.key(); !keys[k] {
				keys[k] = true
				queue = append(queue, next)
			}
		}
	}
	if len(seen) != int(numMove) {
		t.Errorf("moves taken: %v of %d", seen, numMove)
	}
}

// clone must miss nothing, or states would bleed into each other.
func TestExploreClone(t *testing.T) {
	w := newWorld(2, budget{requests: 1, crashes: 1, timers: 1})
	for range 40 {
		moves := w.moves()
		before, c := w.key(), w.clone()
		if !reflect.DeepEqual(w.server, c.server) || c.key() != before {
			t.Fatal("the clone differs")
		}
		for _, m := range moves {
			if err := w.clone().do(m); err != nil {
				t.Fatal(err)
			}
		}
		if w.key() != before {
			t.Fatal("a clone's step changed its origin")
		}
		if len(moves) == 0 {
			return
		}
		if err := w.do(moves[len(moves)-1]); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", moves[len(moves)-1], err))
		}
	}
}
