package reset

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Times of the machines in an exploration. The grace period allows two tries. Each process
// has its own clock, so any of them may be arbitrarily slow.
const (
	worldGrace = 15 * time.Millisecond
	worldLimit = 10 * time.Millisecond
)

// budget bounds the mishaps of an exploration.
type budget struct{ wants, deaths, restarts, stops, fails, denials, leaves, removals, programs, returns int8 }

// proc is a process with its machine and its user. During a Step of the machine, m is the
// machine before the Step, and answers holds the answers of the system calls so far.
type proc struct {
	alive, stopped bool
	leaves         bool // it ends once the Step is over
	exclusive      bool // its resets involve the other processes
	m              *Machine
	now            time.Time
	busy           bool // a Step is running
	ev             Event
	answers        []answer
	notice         bool      // the intent file has changed since it was read
	open           bool      // the user may have the device open
	in             bool      // the user might open it once
	works          bool      // the user has opened it
	asked          bool      // the user was asked to release the device, and has not yet
	hook           bool      // Reset runs
	led            time.Time // when it began to lead
	set            int       // its files: an index of world.sets
	former         bool      // it also had the files of the set before
}

// answer is the answer of a system call.
type answer struct {
	ok  bool
	rec Record
	err error
}

// world is the kernel's locks, the files, and the device.
type world struct {
	procs []proc
	sets  [2]lockFiles
	last  int  // the set that is not removed
	half  bool // the device is half reset
	held  bool // a program that takes no part in the locks has the device open
	have  budget
}

// lockFiles are the two files of a device. Once they are removed, there are others.
type lockFiles struct {
	intent int    // who holds it; -1: no process
	excl   int    // who holds use exclusively; -1: no process
	shared uint8  // bit i: process i holds use shared
	file   Record // the content of the intent file
}

// files returns the files of a process.
func (w *world) files(i int) *lockFiles { return &w.sets[w.procs[i].set] }

var errRemoved = errors.New("removed")

var worldStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newWorld starts a process for each letter: e for one with exclusive resets, a for one that
// resets alone. A capital letter means that the process already uses the device.
func newWorld(kinds string, have budget) *world {
	free := lockFiles{intent: -1, excl: -1}
	w := &world{sets: [2]lockFiles{free, free}, have: have}
	for i, kind := range kinds {
		w.procs = append(w.procs, newProc(kind == 'e' || kind == 'E'))
		for p := &w.procs[i]; kind < 'a' && (p.m.state != StateUsing || p.busy); {
			if err := w.do(move{mAct, i}); err != nil {
				panic(err)
			}
		}
	}
	return w
}

// newProc returns a process that is about to make its first system call.
func newProc(exclusive bool) proc {
	conf := Config{Grace: worldGrace, Limit: worldLimit, Shared: true, Exclusive: exclusive}
	return proc{alive: true, exclusive: exclusive, m: New(conf, nil), now: worldStart, busy: true}
}

func (w *world) clone() *world {
	c := *w
	c.procs = slices.Clone(w.procs)
	return &c
}

// key identifies the state without everything that does not affect the future: absolute
// times, the numbers of resets, texts, and the watch over the leader. It is a hash, since
// strings would keep the garbage collector busy.
func (w *world) key() [sha256.Size]byte {
	k := make([]byte, 0, 256)
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
	record := func(r *Record) {
		num(slices.Index(phases, r.Phase), slices.Index(outcomes, r.Outcome))
		flags(r.Begun)
	}
	h := w.have
	num(int(h.wants), int(h.deaths), int(h.restarts), int(h.stops), int(h.fails), int(h.denials), int(h.leaves), int(h.removals), int(h.programs), int(h.returns))
	num(w.last)
	for i := range w.sets {
		f := &w.sets[i]
		num(f.intent, f.excl, int(f.shared))
		record(&f.file)
	}
	flags(w.half, w.held)
	for i := range w.procs {
		p := &w.procs[i]
		flags(p.alive, p.stopped, p.leaves)
		if !p.alive {
			continue
		}
		m := p.m
		flags(p.notice, p.open, p.in, p.works, p.asked, p.hook, p.busy)
		flags(m.able, m.pending, m.wants, m.works, m.abandon && m.pending, p.former)
		num(int(m.retry / worldGrace))
		num(int(m.state), p.set)
		if m.state.Leads() {
			flags(m.complete, m.begun)
			num(int(min(p.now.Sub(p.led), worldGrace)))
			record(&m.rec) // in the other states it is read before it is used
		}
		for _, at := range []time.Time{m.deadline, m.lookAt} {
			if at.IsZero() {
				num(-1)
				continue
			}
			num(int(max(at.Sub(p.now), 0)))
		}
		if p.busy {
			num(int(p.ev.Kind), slices.Index(outcomes, p.ev.Outcome))
			for _, a := range p.answers {
				flags(a.ok, a.err != nil)
				record(&a.rec)
			}
		}
		k = append(k, 0)
	}
	return sha256.Sum256(k)
}

// step begins a Step of a machine, which makes one system call at each move, starting with
// this one.
func (w *world) step(i int, ev Event) error {
	p := &w.procs[i]
	if !p.m.state.Leads() {
		w.renew(i)
	}
	p.busy, p.ev, p.answers = true, ev, nil
	return w.continueStep(i)
}

// renew replaces the files of a process if they were removed, and no process leads a reset
// with them.
func (w *world) renew(i int) {
	p, old, files := &w.procs[i], w.files(i), &w.sets[w.last]
	if p.set == w.last || old.intent >= 0 {
		return
	}
	p.set, p.former = w.last, true
	if p.m.state != StateWaiting && files.excl < 0 {
		files.shared |= 1 << i
	}
	old.shared &^= 1 << i
	if files.intent < 0 && files.file == (Record{}) {
		files.file = old.file
	}
}

// continueStep makes the next system call of a Step, and ends the Step if that was the last
// one. To do so, it runs the Step again with the answers so far.
func (w *world) continueStep(i int) error {
	p := &w.procs[i]
	m, k := *p.m, &replay{w: w, proc: i, answers: p.answers}
	out, over := k.step(&m)
	switch {
	case k.err != nil:
		return k.err
	case !over:
		p.answers = k.all
		return nil
	}
	if p.works && p.ev.Kind != Want && !p.m.wants && p.m.state == StateUsing && m.state == StateLeading {
		return fmt.Errorf("process %d closes a device that works in order to complete a reset", i)
	}
	looked := p.ev.Kind == Look
	p.m, p.busy, p.ev, p.answers = &m, false, Event{}, nil
	if p.leaves {
		w.die(i)
		return nil
	}
	if err := w.user(i, out); err != nil {
		return err
	}
	if at, ok := m.NextDeadline(); ok && looked && !at.After(p.now) {
		return fmt.Errorf("process %d, %s, has looked and is due again at once", i, m.state)
	}
	return nil
}

// step runs a Step. It returns false if the Step needs a second new system call.
func (k *replay) step(m *Machine) (out []Action, over bool) {
	defer func() {
		if r := recover(); r != nil && r != any(nextCall) {
			panic(r)
		}
	}()
	p := &k.w.procs[k.proc]
	k.all = slices.Clip(k.answers)
	m.k = k
	defer func() { m.k = nil }()
	return m.Step(p.now, p.ev, nil), true
}

// replay implements Kernel for a Step that is run again.
type replay struct {
	w       *world
	proc    int
	answers []answer // not yet replayed
	made    bool     // a new call that other processes can notice was made
	all     []answer // of all calls of this run
	err     error
}

// nextCall ends a Step before a system call.
const nextCall = "the next system call"

// call returns the answer of a system call that was made before, or makes the call. A call
// that other processes neither notice nor influence is not a separate move.
func (k *replay) call(alone bool, do func() answer) answer {
	if len(k.answers) > 0 {
		a := k.answers[0]
		k.answers = k.answers[1:]
		return a
	}
	if !alone && k.made {
		panic(nextCall)
	}
	k.made = k.made || !alone
	a := do()
	k.all = append(k.all, a)
	return a
}

func (k *replay) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

func (k *replay) Read() Record {
	return k.call(k.ours(), func() answer {
		k.w.procs[k.proc].notice = false
		return answer{rec: k.w.files(k.proc).file}
	}).rec
}

// ours reports whether this process holds the intent lock, so no other process writes the
// intent.
func (k *replay) ours() bool { return k.w.files(k.proc).intent == k.proc }

func (k *replay) Claim() (ours bool, err error) {
	return k.call(k.ours(), func() answer {
		f := k.w.files(k.proc)
		if f.intent >= 0 && f.intent != k.proc || k.w.procs[k.proc].set != k.w.last {
			return answer{}
		}
		f.intent = k.proc
		return answer{ok: true}
	}).ok, nil
}

func (k *replay) Disclaim() {
	k.call(!k.ours(), func() answer {
		if k.ours() {
			k.w.files(k.proc).intent = -1
		}
		return answer{}
	})
}

// Share releases the lock before it tries to take the other one, as flock does.
func (k *replay) Share() bool {
	f := k.w.files(k.proc)
	return k.call(f.shared&(1<<k.proc) != 0, func() answer {
		k.unlock()
		if f.excl >= 0 {
			return answer{}
		}
		f.shared |= 1 << k.proc
		return answer{ok: true}
	}).ok
}

func (k *replay) Exclude() (ours bool, err error) {
	a := k.call(false, func() answer {
		if !k.ours() {
			k.fail("process %d tries to take the exclusive lock without the intent lock", k.proc)
		}
		p := &k.w.procs[k.proc]
		if p.set != k.w.last {
			return answer{err: errRemoved}
		}
		if p.former {
			old := &k.w.sets[p.set-1]
			if old.shared != 0 {
				return answer{}
			}
			old.excl = k.proc
		}
		f := k.w.files(k.proc)
		f.shared &^= 1 << k.proc
		if f.shared != 0 {
			return answer{}
		}
		f.excl = k.proc
		return answer{ok: true}
	})
	return a.ok, a.err
}

func (k *replay) Drop() {
	k.call(false, func() answer { k.unlock(); return answer{} })
}

// unlock releases the locks on use.
func (k *replay) unlock() {
	for i := range k.w.sets {
		f := &k.w.sets[i]
		f.shared &^= 1 << k.proc
		if f.excl == k.proc {
			f.excl = -1
		}
	}
}

// Foreign is no move of its own: a program that opens the device between the answer and the
// reset is the limit that doc.go states.
func (k *replay) Foreign() bool {
	return k.call(true, func() answer { return answer{ok: k.w.held} }).ok
}

func (k *replay) Holders() string { return "another" }

func (k *replay) Write(r Record) {
	k.call(false, func() answer {
		w, p, f := k.w, &k.w.procs[k.proc], k.w.files(k.proc)
		if !k.ours() {
			k.fail("process %d writes without the intent lock", k.proc)
		}
		if r.Phase == PhaseWanted {
			p.led = p.now
		}
		if r.Outcome == OutcomeHeld && f.file.Phase != PhaseIdle && p.now.Sub(p.led) < worldGrace {
			k.fail("process %d gives up after %s", k.proc, p.now.Sub(p.led))
		}
		if (r.Outcome != OutcomeHeld || r.Phase != PhaseIdle) && f.file.Begun && !r.Begun && w.half {
			k.fail("process %d clears the mark that the device is half reset", k.proc)
		}
		f.file = r
		for j := range w.procs {
			q := &w.procs[j]
			q.notice = q.notice || j != k.proc && q.alive && q.set == p.set
		}
		return answer{}
	})
}

// user executes the actions for a machine's user.
func (w *world) user(i int, out []Action) error {
	p := &w.procs[i]
	if !p.in && p.m.state == StateUsing && !p.m.pending {
		p.in, p.open = true, true
	}
	for _, a := range out {
		switch a := a.(type) {
		case Release:
			if p.asked {
				return fmt.Errorf("process %d was asked twice to release the device", i)
			}
			p.asked, p.works = true, false
		case Ended:
			if before := p.asked; a.Abandon != (before && a.Outcome == OutcomeHeld) {
				return fmt.Errorf("process %d abandons its users: %v, they have not released the device: %v", i, a.Abandon, before)
			}
			p.asked, p.in, p.open = false, true, true
		case Reset:
			if err := w.checkReset(i, a); err != nil {
				return err
			}
			p.hook = true
		}
	}
	for j := range w.procs {
		if q := &w.procs[j]; j != i && p.open && q.alive && q.hook && q.exclusive {
			return fmt.Errorf("process %d opens the device while process %d resets it", i, j)
		}
	}
	if w.opens(i) {
		return w.do(move{mOpen, i})
	}
	return nil
}

// opens reports whether the user of a process can open the device, which it does at once.
func (w *world) opens(i int) bool {
	p := &w.procs[i]
	return p.open && !p.asked && !p.works && !w.half
}

func (w *world) checkReset(i int, a Reset) error {
	for j := range w.procs {
		switch q := &w.procs[j]; {
		case !q.alive || !w.procs[i].exclusive && j != i:
		case q.hook:
			return fmt.Errorf("process %d resets the device while process %d does", i, j)
		case j != i && q.open:
			return fmt.Errorf("process %d resets the device while process %d has the device open", i, j)
		case j == i && q.open && !a.Abandon:
			return fmt.Errorf("process %d resets the device while it has the device open itself", i)
		case j == i && w.held && q.exclusive:
			return fmt.Errorf("process %d resets the device while a program has the device open", i)
		case j == i && a.Abandon && q.now.Sub(q.led) < worldGrace:
			return fmt.Errorf("process %d abandons its users after %s", i, q.now.Sub(q.led))
		}
	}
	if w.half && !a.Complete && w.procs[i].exclusive {
		return fmt.Errorf("process %d does not know that the device is half reset", i)
	}
	w.half = w.half || w.procs[i].exclusive
	w.procs[i].open = false // an abandoned user has a zombie
	return nil
}

// atRest reports whether every running process uses the device, or waits for a stopped
// leader.
func (w *world) atRest() bool {
	blocked, able, runs := false, false, false
	for i := range w.procs {
		p := &w.procs[i]
		blocked = blocked || p.alive && p.stopped && (w.files(i).intent == i || w.files(i).excl == i)
		runs = runs || p.alive && !p.stopped
		able = able || p.alive && !p.stopped && p.m.able
	}
	for i := range w.procs {
		p := &w.procs[i]
		switch {
		case !p.alive || p.stopped:
		case p.busy || p.notice || p.hook:
			return false
		case blocked:
		case p.m.state != StateUsing || p.m.wants || p.asked || !p.open || !p.works && !w.half || p.set != w.last:
			return false
		}
	}
	f := &w.sets[w.last]
	unfinished := f.file.Phase != PhaseIdle || able && (w.half || f.file.Begun)
	return blocked || !runs || !unfinished
}
