package reset

import (
	"fmt"
	"slices"
)

type moveKind uint8

// Moves. What follows mBreak is a mishap: rest must be in reach without it.
const (
	mDial     moveKind = iota // dial, hosting if nobody does
	mUp                       // the server reads a message
	mDown                     // the client reads a message
	mRelease                  // the shell has released everything
	mLostRep                  // the server hears of a broken connection
	mDeadRep                  // the server hears of a dead process
	mSettle                   // the settle time ends
	mDone                     // the device's reset succeeds
	mDeadline                 // grace, reset limit or forget time ends
	mRequest
	mHalf  // the server reads half of a message; the rest comes later or never
	mTorn  // half a message is read, then the connection breaks
	mFail  // the device's reset fails
	mBreak // the connection breaks, both ends live
	mCrash
	mRestart
	mLeave
	numMove
)

var moveNames = [numMove]string{
	"dial", "up", "down", "release", "report lost", "report dead", "settle", "done", "deadline",
	"request", "half", "torn", "fail", "break", "crash", "restart", "leave",
}

type move struct {
	kind moveKind
	proc int
}

func (m move) String() string { return fmt.Sprintf("%s %d", moveNames[m.kind], m.proc) }

func (m move) mishap() bool { return m.kind >= mRequest }

// moves lists what can happen next.
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
	if p.alive && !p.left {
		switch k {
		case mDial:
			return p.client.link == linkDown
		case mDown:
			return len(p.down) > 0
		case mRelease:
			return p.release != 0
		case mRequest:
			return w.have.requests > 0 && p.client.work == workRunning && !p.client.wants
		case mHalf, mTorn:
			return w.have.halves > 0 && len(p.up) > 0 && len(p.part) == 0
		case mBreak:
			return w.have.breaks > 0 && p.conn != 0 && i != w.host
		case mCrash:
			return w.have.crashes > 0
		case mLeave:
			return w.have.leaves > 0 && p.conn != 0
		default: // the moves below need no process that runs
		}
	}
	switch k {
	case mUp:
		return len(p.up) > 0
	case mRestart:
		return !p.alive && w.have.restarts > 0
	default:
		return i == 0 && w.server != nil && w.possibleAtServer(k)
	}
}

func (w *world) possibleAtServer(k moveKind) bool {
	switch k {
	case mLostRep:
		return len(w.lostRep) > 0
	case mDeadRep:
		return len(w.deadRep) > 0
	case mSettle:
		return !w.server.settleAt.IsZero() && w.gathered()
	case mDone:
		return w.reset != 0
	case mFail:
		return w.reset != 0 && w.have.timers > 0
	case mDeadline:
		return w.server.settleAt.IsZero() && w.deadlineCounts()
	default:
		return false
	}
}

// deadlineCounts: a time-out has a budget, except where nothing else can end a
// wait, for an inherited client that died. One that lives dials again within far
// less than a grace period.
func (w *world) deadlineCounts() bool {
	_, armed := w.server.NextDeadline()
	for _, p := range w.procs {
		c := w.server.clients.find(p.id)
		if p.alive && c != nil && c.inherited {
			return false
		}
	}
	return armed && (w.have.timers > 0 || w.server.clients.inherited())
}

// gathered is the settle time's promise: who is in nobody's roster is back before
// it ends.
func (w *world) gathered() bool {
	for _, p := range w.procs {
		known := w.server.clients.find(p.id) != nil
		if p.alive && p.held && !known {
			return false
		}
	}
	return true
}

func (w *world) do(m move) error {
	p := &w.procs[m.proc]
	switch m.kind {
	case mDial:
		w.now = w.now.Add(retryMax)
		if w.server != nil && !w.server.settleAt.IsZero() {
			w.server.settleAt = w.now.Add(DefaultSettle) // it ends by mSettle only
		}
		return w.tell(p, ClientTick{})
	case mUp:
		return w.readUp(p)
	case mDown:
		return w.readDown(p)
	case mRelease:
		id := p.release
		p.release, p.held = 0, false
		return w.tell(p, Released{id})
	case mRequest:
		w.have.requests--
		return w.tell(p, WantReset{})
	case mHalf:
		w.have.halves--
		w.half(p)
	case mTorn:
		w.have.halves--
		return w.torn(p)
	case mBreak:
		w.have.breaks--
		return w.cut(p, true)
	case mCrash:
		w.have.crashes--
		return w.crash(m.proc)
	case mRestart:
		w.have.restarts--
		*p = w.newProc()
	case mLeave:
		w.have.leaves--
		return w.leave(m.proc)
	default:
		return w.doAtServer(m.kind)
	}
	return nil
}

func (w *world) doAtServer(k moveKind) error {
	switch k {
	case mLostRep:
		conn := w.lostRep[0]
		w.lostRep = w.lostRep[1:]
		return w.serve(Lost{conn})
	case mDeadRep:
		conn := w.deadRep[0]
		w.deadRep = w.deadRep[1:]
		return w.serve(Died{conn})
	case mDone, mFail:
		if k == mFail {
			w.have.timers--
		}
		return w.serve(ResetDone{Reset: w.reset, Failed: k == mFail})
	default:
		return w.timer()
	}
}

// timer lets the server's next deadline come.
func (w *world) timer() error {
	if w.server.settleAt.IsZero() {
		w.have.timers = max(w.have.timers-1, 0)
		w.grace = w.server.phase == PhasePending
	}
	if at, _ := w.server.NextDeadline(); at.After(w.now) {
		w.now = at
	}
	return w.serve(Tick{})
}

// readUp lets the server read what it has of a message and the rest of it.
func (w *world) readUp(p *proc) error {
	got := slices.Concat(p.part, p.up)
	msg, n, err := Decode(got)
	if err != nil || n == 0 {
		return fmt.Errorf("decode %x: %d, %w", got, n, err)
	}
	p.part, p.up = nil, got[n:]
	i := slices.IndexFunc(w.procs, func(q proc) bool { return q.id == p.id })
	return w.serve(Received{p.conn, Peer{PID: int32(p.id), Local: i == w.host}, msg})
}

func (w *world) readDown(p *proc) error {
	msg, n, err := Decode(p.down)
	if err != nil || n == 0 {
		return fmt.Errorf("decode %x: %d, %w", p.down, n, err)
	}
	p.down = p.down[n:]
	return w.tell(p, Heard{msg})
}

// half moves half of a message into the server's reader.
func (w *world) half(p *proc) {
	_, n, _ := Decode(p.up)
	p.part, p.up = p.up[:n/2], p.up[n/2:]
}

func (w *world) torn(p *proc) error {
	w.half(p)
	if m, n, err := Decode(p.part); m != nil || n != 0 || err != nil {
		return fmt.Errorf("half a message: %v, %d, %w", m, n, err)
	}
	if i := slices.IndexFunc(w.procs, func(q proc) bool { return q.id == p.id }); i == w.host {
		return nil // within a process nothing tears; the rest comes
	}
	return w.cut(p, true)
}

// crash ends a process, and with the host's the server.
func (w *world) crash(i int) error {
	p := &w.procs[i]
	if p.conn != 0 && i != w.host {
		w.lostRep = append(w.lostRep, p.conn)
	}
	w.deadRep = append(w.deadRep, p.watched...)
	w.forget(p)
	return w.hostGone(i)
}

// forget clears what a process that ends takes along.
func (w *world) forget(p *proc) {
	p.alive, p.held, p.release, p.told, p.conn = false, false, 0, 0, 0
	p.up, p.down, p.part = nil, nil, nil
}

// leave ends a client in order; a host goes on as long as its process does, and
// that ends with its client here.
func (w *world) leave(i int) error {
	p := &w.procs[i]
	p.left, p.held, p.release, p.told = true, false, 0, 0
	if err := w.tell(p, Stop{}); err != nil || i != w.host {
		return err
	}
	w.forget(p)
	return w.hostGone(i)
}

func (w *world) hostGone(i int) error {
	if i != w.host {
		return nil
	}
	w.server, w.host, w.reset, w.grace = nil, -1, 0, false
	w.lostRep, w.deadRep = nil, nil
	for j := range w.procs {
		w.procs[j].watched = nil
		if q := &w.procs[j]; q.conn != 0 {
			if err := w.cut(q, false); err != nil {
				return err
			}
		}
	}
	return nil
}
