package reset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Times of the machines in an exploration. The grace period allows two tries. Each process
// has its own clock, so any of them may be arbitrarily slow.
const (
	worldTry   = 10 * time.Millisecond
	worldPoll  = 20 * time.Millisecond
	worldGrace = 15 * time.Millisecond
	worldLimit = 10 * time.Millisecond
)

// budget bounds the mishaps of an exploration.
type budget struct{ wants, deaths, restarts, stops, fails, denials, leaves int8 }

// proc is a process with its machine and its user.
type proc struct {
	alive, stopped bool
	leaves         bool // it ends once its queue is empty
	exclusive      bool // its resets involve the other processes
	m              *Machine
	now            time.Time
	queue          []Action  // not yet executed
	notice         bool      // the intent file has changed since it was read
	open           bool      // the user may have the device open
	in             bool      // the user has got Open once
	asked          ID        // the reset for which the user got Release; 0: none
	hook           bool      // Reset runs
	led            time.Time // when it began to lead
}

// world is the kernel's locks, the file, and the device.
type world struct {
	procs  []proc
	intent int    // who holds it; -1: no process
	excl   int    // who holds use exclusively; -1: no process
	shared uint8  // bit i: process i holds use shared
	file   Record // the content of the intent file
	half   bool   // the device is half reset
	have   budget
}

var worldStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newWorld starts a process for each letter: e for one with exclusive resets, a for one that
// resets alone. A capital letter means that the process already uses the device.
func newWorld(kinds string, have budget) *world {
	w := &world{intent: -1, excl: -1, have: have}
	for i, kind := range kinds {
		w.procs = append(w.procs, newProc(kind == 'e' || kind == 'E'))
		for p := &w.procs[i]; kind < 'a' && p.m.state != StateUsing; {
			m := move{mTick, i}
			if len(p.queue) > 0 {
				m.kind = mAct
			}
			if err := w.do(m); err != nil {
				panic(err)
			}
		}
	}
	return w
}

func newProc(exclusive bool) proc {
	conf := Config{Grace: worldGrace, Limit: worldLimit, Shared: true, Exclusive: exclusive, try: worldTry, poll: worldPoll}
	return proc{alive: true, exclusive: exclusive, m: New(worldStart, conf), now: worldStart}
}

func (w *world) clone() *world {
	c := *w
	c.procs = slices.Clone(w.procs)
	for i := range c.procs {
		m := *c.procs[i].m
		c.procs[i].m, c.procs[i].queue = &m, slices.Clone(c.procs[i].queue)
	}
	return &c
}

// key returns the state without everything that does not affect the future: absolute times,
// the numbers of resets, texts, and the vigil.
func (w *world) key() string {
	var k []byte
	num := func(vs ...int) {
		for _, v := range vs {
			k = binary.AppendVarint(k, int64(v))
		}
	}
	flags := func(vs ...bool) {
		for _, v := range vs {
			k = strconv.AppendBool(k, v)[:len(k)+1]
		}
	}
	record := func(r *Record) { num(int(r.Phase), int(r.Outcome)); flags(r.Begun) }
	h := w.have
	num(int(h.wants), int(h.deaths), int(h.restarts), int(h.stops), int(h.fails), int(h.denials), int(h.leaves))
	num(w.intent, w.excl, int(w.shared))
	flags(w.half)
	record(&w.file)
	for i := range w.procs {
		p := &w.procs[i]
		flags(p.alive, p.stopped, p.leaves)
		if !p.alive {
			continue
		}
		m := p.m
		flags(p.notice, p.open, p.in, p.asked != 0, p.asked == m.serial, p.hook)
		flags(m.able, m.told, m.wants)
		num(int(m.state))
		if m.state > StateReleasing {
			flags(m.alone, m.abandon, m.complete, m.begun)
			num(int(min(p.now.Sub(p.led), worldGrace)))
		}
		if m.state > StateReleasing || len(p.queue) > 0 { // otherwise it is read before it is used
			record(&m.rec)
		}
		for _, at := range []time.Time{m.graceAt, m.limitAt, m.tryAt, m.pollAt, m.orphanAt} {
			if at.IsZero() {
				num(-1)
				continue
			}
			num(int(max(at.Sub(p.now), 0)))
		}
		for _, a := range p.queue {
			k = fmt.Appendf(k, "%T", a)
			switch a := a.(type) {
			case Write:
				record(&a.Record)
			case Exclude:
				flags(a.Name)
			}
		}
		k = append(k, 0)
	}
	return string(k)
}

// step gives a machine an event and executes the actions that involve no other process.
func (w *world) step(i int, ev Event) error {
	p := &w.procs[i]
	answers := p.m.Step(p.now, ev, nil)
	p.queue = append(p.queue, answers...)
	return w.local(i)
}

// local executes the actions at the head of a queue that no other process can notice.
func (w *world) local(i int) error {
	p := &w.procs[i]
	for len(p.queue) > 0 {
		switch a := p.queue[0].(type) {
		case Open:
			if p.in {
				return fmt.Errorf("process %d got Open twice", i)
			}
			p.in = true
			if err := w.letIn(i); err != nil {
				return err
			}
		case Release:
			if p.asked != 0 || !p.in {
				return fmt.Errorf("process %d got Release twice", i)
			}
			p.asked = a.Reset
		case Ended:
			p.asked = 0
			if err := w.letIn(i); err != nil {
				return err
			}
		case Reset:
			if err := w.checkReset(i, a); err != nil {
				return err
			}
			p.hook = true
		case Silent, Answers:
		default:
			return nil
		}
		p.queue = p.queue[1:]
	}
	return nil
}

// letIn opens the device, and checks that no other process resets it.
func (w *world) letIn(i int) error {
	w.procs[i].open = true
	for j := range w.procs {
		if q := &w.procs[j]; j != i && q.alive && q.hook && !q.m.alone {
			return fmt.Errorf("process %d opens the device while process %d resets it", i, j)
		}
	}
	return nil
}

func (w *world) checkReset(i int, a Reset) error {
	for j := range w.procs {
		switch q := &w.procs[j]; {
		case !q.alive || w.procs[i].m.alone && j != i:
		case q.hook:
			return fmt.Errorf("process %d resets the device while process %d does", i, j)
		case j != i && q.open:
			return fmt.Errorf("process %d resets the device while process %d has the device open", i, j)
		case j == i && q.open && !a.Abandon:
			return fmt.Errorf("process %d resets the device and has it open itself", i)
		case j == i && a.Abandon && q.now.Sub(q.led) < worldGrace:
			return fmt.Errorf("process %d abandons its users after %s", i, q.now.Sub(q.led))
		}
	}
	if w.half && !a.Complete && !w.procs[i].m.alone {
		return fmt.Errorf("process %d does not know that the device is half reset", i)
	}
	w.half = w.half || !w.procs[i].m.alone
	w.procs[i].open = false // an abandoned user has a zombie
	return nil
}

// act executes the next action of a process, one system call.
func (w *world) act(i int) error {
	p := &w.procs[i]
	a := p.queue[0]
	p.queue = p.queue[1:]
	bit := uint8(1) << i
	switch a := a.(type) {
	case Look:
		p.notice = false
		return w.step(i, Seen{w.file})
	case Claim:
		free := w.intent < 0 || w.intent == i
		if free {
			w.intent, p.notice = i, false
		}
		return w.step(i, Claimed{free, w.file})
	case Disclaim:
		w.intent = -1
	case Share: // flock drops the lock before it tries for the other one
		if w.excl == i {
			w.excl = -1
		}
		if held := w.excl < 0; held {
			w.shared |= bit
			return w.step(i, Taken{Held: true})
		}
		return w.step(i, Taken{})
	case Exclude:
		if w.intent != i {
			return fmt.Errorf("process %d tries to take the exclusive lock without the intent lock", i)
		}
		w.shared &^= bit
		if w.shared == 0 {
			w.excl = i
			return w.step(i, Taken{Held: true})
		}
		return w.step(i, Taken{By: "another"})
	case Drop:
		w.shared &^= bit
		if w.excl == i {
			w.excl = -1
		}
	case Write:
		return w.write(i, a.Record)
	}
	return w.local(i)
}

func (w *world) write(i int, r Record) error {
	p := &w.procs[i]
	if w.intent != i {
		return fmt.Errorf("process %d writes without the intent lock", i)
	}
	if r.Phase == PhaseWanted && p.m.able {
		p.led = p.now
	}
	if r.Outcome == OutcomeHeld && p.now.Sub(p.led) < worldGrace {
		return fmt.Errorf("process %d gives up after %s", i, p.now.Sub(p.led))
	}
	if r.Outcome != OutcomeHeld || r.Phase != PhaseIdle {
		if w.file.Begun && !r.Begun && w.half {
			return fmt.Errorf("process %d clears the mark that the device is half reset", i)
		}
	}
	w.file = r
	for j := range w.procs {
		w.procs[j].notice = w.procs[j].notice || j != i && w.procs[j].alive
	}
	return w.local(i)
}

// atRest reports whether every running process uses the device, or waits for a stopped
// leader.
func (w *world) atRest() bool {
	blocked, able, runs := false, false, false
	for i := range w.procs {
		p := &w.procs[i]
		blocked = blocked || p.alive && p.stopped && (w.intent == i || w.excl == i)
		runs = runs || p.alive && !p.stopped
		able = able || p.alive && !p.stopped && p.m.able
	}
	for i := range w.procs {
		p := &w.procs[i]
		switch {
		case !p.alive || p.stopped:
		case len(p.queue) > 0 || p.notice || p.hook:
			return false
		case blocked:
		case p.m.state != StateUsing || p.m.wants || p.asked != 0 || !p.open:
			return false
		}
	}
	unfinished := w.file.Under() || able && (w.half || w.file.Begun)
	return blocked || !runs || !unfinished
}
