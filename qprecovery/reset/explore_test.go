package reset

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestR11R15R16Explore runs machines over a model of the kernel's locks, through every
// interleaving of their system calls that the budgets allow, breadth first over canonical
// states. Each process may die or stop between any two calls and has its own clock. The
// test checks that
//   - no reset begins while another process has the device open or resets it, not even a
//     program that takes no part in the locks;
//   - no process opens the device while another one resets it;
//   - no process closes a device that works because a reset was cut short;
//   - a process abandons its users, or gives up on others, only after the grace period;
//   - the user alternately gets Release and Ended;
//   - a process that has looked need not look again at once;
//   - every state leads to rest without further mishaps. At rest every running process
//     uses the device, no reset is pending, and none that a running process could
//     complete is cut short; or the processes wait for a stopped leader.
//
// The lock files may be removed meanwhile; package resetlock describes what the processes do
// then. A process that starts after that is not part of it, which is a limit stated there.
func TestR11R15R16Explore(t *testing.T) {
	for _, c := range []struct {
		name, procs string
		have        budget
	}{
		{"one", "e", budget{wants: 2, deaths: 2, restarts: 2, stops: 1, fails: 1}},
		{"one alone", "a", budget{wants: 2, deaths: 1, restarts: 1, fails: 1}},
		{"two/die", "ee", budget{wants: 1, deaths: 1, restarts: 1}},
		{"two/both want", "ee", budget{wants: 2}},
		{"two/both die", "ee", budget{wants: 1, deaths: 2, restarts: 1}},
		{"two/stop", "ee", budget{wants: 1, stops: 1}},
		{"two/denied", "ee", budget{wants: 1, denials: 2}},
		{"two/denied, fail", "ee", budget{wants: 1, denials: 1, fails: 1}},
		{"two/denied, die", "ee", budget{wants: 1, denials: 1, deaths: 1, restarts: 1}},
		{"one/program", "e", budget{wants: 2, deaths: 1, restarts: 1, programs: 3}},
		{"one/return", "e", budget{wants: 1, fails: 1, deaths: 1, restarts: 1, returns: 1, programs: 1}},
		{"two/return", "ee", budget{wants: 1, fails: 1, returns: 1}},
		{"two/program", "ee", budget{wants: 1, fails: 1, programs: 2}},
		{"two/program, die", "EE", budget{wants: 1, deaths: 1, programs: 1}},
		{"two/leave", "ee", budget{wants: 1, leaves: 2, restarts: 1}},
		{"two/one alone", "ea", budget{wants: 2, deaths: 1, restarts: 1}},
		{"two/remove", "EE", budget{wants: 2, removals: 1}},
		{"two/remove, die", "EE", budget{wants: 1, removals: 1, deaths: 1}},
		{"two/remove, stop", "EE", budget{wants: 1, removals: 1, stops: 1}},
		{"two/remove, denied", "EE", budget{wants: 1, removals: 1, denials: 1}},
		{"three/remove", "EEE", budget{wants: 1, removals: 1}},
		{"three/die", "EEE", budget{wants: 1, deaths: 1}},
		{"three/stop", "EEE", budget{wants: 1, stops: 1}},
		{"three/denied", "EEA", budget{wants: 1, denials: 1}},
		{"three/one joins", "EEe", budget{wants: 1}},
	} {
		if testing.Short() && len(c.procs) > 2 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := explore(t, newWorld(c.procs, c.have)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestExploreFindsMistakes makes sure that the exploration can fail: it finds each of these
// mistakes in the table.
func TestExploreFindsMistakes(t *testing.T) {
	for _, c := range []struct {
		mistake string
		state   State
		event   Kind
		do      func(*Machine, Event)
		procs   string
		have    budget
		want    string
	}{
		{"resets without the exclusive lock", StateGathering, Look, func(m *Machine, _ Event) {
			m.become(StateResetting, m.now)
			m.emit(Reset{})
		}, "EE", budget{wants: 1}, "has the device open"},
		{"does not look for programs", StateGathering, Look, func(m *Machine, _ Event) {
			if ours, _ := m.k.Exclude(); ours {
				m.become(StateResetting, m.now)
				m.emit(Reset{})
			}
		}, "E", budget{wants: 1, programs: 1}, "a program has the device open"},
		{"abandons its users at once", StateUsing, Want, func(m *Machine, ev Event) {
			m.want(ev)
			m.deadline = m.now
			m.release(Event{Kind: Look})
		}, "E", budget{wants: 1}, "abandons its users"},
		{"does not complete a reset that was cut short", StateWaiting, Look, func(m *Machine, _ Event) {
			m.lookAgain()
			if ours, _ := m.k.Claim(); ours {
				m.k.Disclaim()
			}
		}, "EE", budget{wants: 1, deaths: 1}, "never comes to rest"},
		{"takes no notice that the device works", StateUsing, Opened, nil, "E", budget{wants: 1, fails: 1, returns: 1}, "closes a device that works"},
		{"does not read the intent again", StateWaiting, Look, nil, "EE", budget{wants: 1, deaths: 1}, "due again at once"},
		{"does not notice requests", StateUsing, Look, func(m *Machine, _ Event) { m.lookAgain() }, "EE", budget{wants: 1, deaths: 1}, "never comes to rest"},
		{"opens the device before the reset has ended", StateWaiting, Look, func(m *Machine, _ Event) {
			m.become(StateUsing, time.Time{})
			m.end(OutcomeDone, "")
		}, "EE", budget{wants: 1}, "opens the device while"},
	} {
		t.Run(c.mistake, func(t *testing.T) {
			w, right := newWorld(c.procs, c.have), table[c.state][c.event]
			defer func() { table[c.state][c.event] = right }()
			table[c.state][c.event] = c.do
			err := explore(t, w)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestEveryStateMoves: each state can be left, by an external event or by time.
func TestEveryStateMoves(t *testing.T) {
	for s := range numState {
		if !slices.ContainsFunc(table[s][:], func(h func(*Machine, Event)) bool { return h != nil }) {
			t.Errorf("%s handles no event", s)
		}
	}
}

// graph holds the states; back holds the moves other than mishaps, backwards.
type graph struct {
	number map[[sha256.Size]byte]int
	parent []int
	by     []move
	back   [][]int32
	rest   []int
}

func (g *graph) add(w *world, parent int, by move) (int, bool) {
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

// path returns the moves that led to a state.
func (g *graph) path(n int) (out string) {
	for ; n > 0; n = g.parent[n] {
		out = "\n  " + g.by[n].String() + out
	}
	return out
}

type pending struct {
	w *world
	n int
}

// maxStates bounds an exploration that would be endless because of a mistake.
const maxStates = 500_000

func explore(t *testing.T, start *world) error {
	t.Helper()
	g := &graph{number: map[[sha256.Size]byte]int{}}
	began, transitions := time.Now(), 0
	g.add(start, -1, move{})
	for queue := []pending{{start, 0}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, move := range at.w.moves() {
			next := at.w.clone()
			if err := next.do(move); err != nil {
				return fmt.Errorf("%w, after%s\n  %s", err, g.path(at.n), move)
			}
			if transitions++; len(g.parent) > maxStates {
				return fmt.Errorf("more than %d states", maxStates)
			}
			n, fresh := g.add(next, at.n, move)
			if !move.mishap() {
				g.back[n] = append(g.back[n], int32(at.n))
			}
			if fresh {
				queue = append(queue, pending{next, n})
			}
		}
		queue[0].w = nil
	}
	t.Logf("%d states, %d transitions, %d at rest, %.1fs", len(g.parent), transitions, len(g.rest), time.Since(began).Seconds())
	return g.checkNoDeadlock()
}

// checkNoDeadlock walks backwards from rest: states that it does not reach are stuck.
func (g *graph) checkNoDeadlock() error {
	reaches := make([]bool, len(g.parent))
	for todo := g.rest; len(todo) > 0; {
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
			return fmt.Errorf("state %d never comes to rest, after%s", n, g.path(n))
		}
	}
	return nil
}
