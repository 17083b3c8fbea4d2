package reset

import (
	"fmt"
	"slices"
	"time"
)

type moveKind uint8

// Moves. Those from mWant on are mishaps: every state must lead to rest without them.
const (
	mAct     moveKind = iota // a process makes its next system call
	mNotice                  // it learns that the file has changed
	mRelease                 // its user has released the device
	mDone                    // its reset succeeds
	mOpen                    // its user has opened the device
	mTick                    // its next deadline comes
	mWant
	mFail
	mDeny
	mDie
	mStop
	mContinue
	mRestart
	mLeave
	mRemove  // the files are removed
	mProgram // a program that does not take part opens the device, or closes it
	mReturn  // an operator brings back the device that a reset has removed
	numMove
)

var moveNames = [numMove]string{"act", "notice", "release", "done", "open", "tick", "want", "fail", "deny", "die", "stop", "continue", "restart", "leave", "remove", "program", "return"}

type move struct {
	kind moveKind
	proc int
}

func (m move) String() string { return fmt.Sprintf("%s %d", moveNames[m.kind], m.proc) }

func (m move) mishap() bool { return m.kind >= mWant }

// moves lists the possible next moves.
func (w *world) moves() (out []move) {
	for k := range numMove {
		for i := range w.procs {
			if w.possible(k, i) {
				out = append(out, move{k, i})
			}
		}
	}
	return out
}

func (w *world) possible(k moveKind, i int) bool {
	p := &w.procs[i]
	switch k {
	case mRestart:
		return !p.alive && w.have.restarts > 0
	case mRemove:
		return i == 0 && w.have.removals > 0
	case mReturn:
		resets := slices.ContainsFunc(w.procs, func(p proc) bool { return p.hook && p.exclusive })
		return i == 0 && w.have.returns > 0 && w.half && !resets
	case mProgram:
		busy := slices.ContainsFunc(w.procs, func(p proc) bool { return p.busy || p.hook })
		return i == 0 && w.have.programs > 0 && !busy && (w.held || !w.half)
	case mDie:
		return p.alive && w.have.deaths > 0
	case mStop:
		return p.alive && !p.stopped && w.have.stops > 0
	case mContinue:
		return p.alive && p.stopped
	case mAct:
		return p.alive && !p.stopped && p.busy
	default: // events, which wait for the earlier system calls
		if !p.alive || p.stopped || p.leaves || p.busy {
			return false
		}
	}
	switch k {
	case mNotice:
		return p.notice
	case mLeave:
		return w.have.leaves > 0 && !p.hook
	case mRelease:
		return p.asked
	case mDone:
		return p.hook
	case mOpen:
		return w.opens(i)
	case mFail:
		return p.hook && w.have.fails > 0
	case mDeny:
		return p.hook && w.have.denials > 0 && p.exclusive
	case mWant:
		return w.have.wants > 0 && p.in && !p.asked && p.m.state == StateUsing && !p.m.wants
	default: // mTick
		_, ok := p.m.NextDeadline()
		return ok
	}
}

func (w *world) do(m move) error {
	p := &w.procs[m.proc]
	switch m.kind {
	case mAct:
		return w.continueStep(m.proc)
	case mNotice:
		p.notice = false
		return w.step(m.proc, Event{Kind: Look})
	case mRelease:
		p.asked, p.open = false, false
		return w.step(m.proc, Event{Kind: Released})
	case mDone:
		p.hook = false
		w.half = w.half && !p.exclusive
		return w.step(m.proc, Event{Kind: Done, Outcome: OutcomeDone})
	case mFail: // an exclusive reset has removed the device
		w.have.fails--
		p.hook = false
		return w.step(m.proc, Event{Kind: Done, Outcome: OutcomeFailed, Unfinished: p.exclusive})
	case mDeny:
		w.have.denials--
		p.hook = false
		w.half = p.m.begun
		return w.step(m.proc, Event{Kind: Done, Outcome: OutcomeDenied})
	case mWant:
		w.have.wants--
		return w.step(m.proc, Event{Kind: Want})
	case mStop:
		w.have.stops--
		p.stopped = true
	case mContinue:
		p.stopped = false
	case mDie:
		w.have.deaths--
		w.die(m.proc)
	case mLeave:
		w.have.leaves--
		p.leaves, p.open = true, false
		return w.step(m.proc, Event{Kind: Close})
	case mRestart:
		w.have.restarts--
		*p = newProc(p.exclusive)
		p.set = w.last
	case mRemove:
		w.have.removals--
		w.last++
		for j := range w.procs {
			w.procs[j].notice = w.procs[j].alive
		}
	case mOpen:
		p.works = true
		return w.step(m.proc, Event{Kind: Opened})
	case mReturn:
		w.have.returns--
		w.half = false
	case mProgram:
		w.have.programs--
		w.held = !w.held
	default: // mTick
		at, _ := p.m.NextDeadline()
		p.now = later(p.now, at)
		return w.step(m.proc, Event{Kind: Look})
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// die releases the locks that the kernel releases when a process dies.
func (w *world) die(i int) {
	for s := range w.sets {
		f := &w.sets[s]
		if f.intent == i {
			f.intent = -1
		}
		if f.excl == i {
			f.excl = -1
		}
		f.shared &^= 1 << i
	}
	w.procs[i] = proc{exclusive: w.procs[i].exclusive, m: w.procs[i].m}
}
