package resetlocktest

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"ipoibd/qprecovery/reset"
)

// Neighbour is another daemon, which shares the device. It releases the device within 200 ms, and its
// resets take up to half a second. Any goroutine may call its methods, except while Run does not run.
type Neighbour struct {
	*share
	grace   time.Duration
	rnd     *rand.Rand
	born    time.Time   // when the next process starts; zero: one runs
	orders  chan func() // that its goroutine calls
	next    []deed      // what it will do
	stopped bool        // as by SIGSTOP
	doomed  bool        // its next reset is cut short, or hangs
	opened  bool        // it has the device open; guarded by mu
}

// deed is something that a neighbour does later.
type deed struct {
	at time.Time
	ev reset.Event
}

// NewNeighbour returns a neighbour that Run will run.
func NewNeighbour(l *Files, grace time.Duration, rnd *rand.Rand) *Neighbour {
	n := &Neighbour{grace: grace, rnd: rnd, orders: make(chan func())}
	n.start(l)
	return n
}

// start starts a new process.
func (n *Neighbour) start(l *Files) {
	n.share = l.join(reset.Config{Name: aNeighbour, Grace: n.grace}, func() bool {
		return l.locked(func() bool { return n.opened })
	})
}

// die kills the process, whatever it is doing.
func (n *Neighbour) die() {
	n.use(false)
	n.share.die()
	n.stopped, n.next, n.born = false, nil, time.Now().Add(n.upTo(time.Second))
	n.locked(func() bool {
		n.shares = slices.DeleteFunc(n.shares, func(p *share) bool { return p == n.share })
		return true
	})
}

// Run runs the neighbour until ctx ends.
func (n *Neighbour) Run(ctx context.Context) {
	n.step(reset.Event{Kind: reset.Look})
	for {
		changes := n.changes
		if n.stopped || n.dead() {
			changes = nil
		}
		select {
		case <-ctx.Done():
			if !n.dead() {
				n.use(false)
				n.Close()
			}
			return
		case f := <-n.orders:
			if !n.dead() {
				f()
			}
		case <-changes:
			n.step(reset.Event{Kind: reset.Look})
		case <-time.After(n.wait()):
			n.work()
		}
	}
}

func (n *Neighbour) dead() bool { return !n.born.IsZero() }

// wait returns how long the neighbour has nothing to do.
func (n *Neighbour) wait() time.Duration {
	const long = time.Hour
	switch {
	case n.stopped:
		return long
	case n.dead():
		return time.Until(n.born)
	}
	next := time.Now().Add(long)
	if at, ok := n.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	for _, d := range n.next {
		if d.at.Before(next) {
			next = d.at
		}
	}
	return time.Until(next) + 1 // a nanosecond later than the timers of the daemon
}

// work does what is due.
func (n *Neighbour) work() {
	switch {
	case n.stopped:
		return
	case n.dead():
		n.born = time.Time{}
		n.start(n.Files)
	}
	now := time.Now()
	for i, d := range n.next {
		if !now.Before(d.at) {
			n.next = append(n.next[:i:i], n.next[i+1:]...)
			n.step(d.ev)
			return // the others are due at once
		}
	}
	n.step(reset.Event{Kind: reset.Look})
}

// step passes an event to the machine, and carries out the actions.
func (n *Neighbour) step(ev reset.Event) {
	if ev.Kind == reset.Released {
		n.use(false)
	}
	for _, a := range n.Step(time.Now(), ev, nil) {
		switch a.(type) {
		case reset.Release:
			n.later(200*time.Millisecond, reset.Event{Kind: reset.Released})
		case reset.Reset:
			n.use(false)
			if n.doomed {
				n.doomed = false
				n.fail()
				break
			}
			done := reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone}
			if n.rnd.IntN(4) == 0 {
				done.Outcome, done.Unfinished = reset.OutcomeFailed, n.rnd.IntN(2) == 0
			}
			n.later(500*time.Millisecond, done)
		}
	}
	if !n.dead() && n.machine.State() == reset.StateUsing && !n.use(true) {
		n.step(reset.Event{Kind: reset.Opened})
	}
}

// fail begins a reset in which the process dies, or which takes so long that the others call it silent.
func (n *Neighbour) fail() {
	hangs := n.grace + reset.DefaultLimit + 2*time.Second
	if n.rnd.IntN(2) == 0 {
		n.die()
	} else {
		n.next = append(n.next, deed{
			time.Now().Add(hangs),
			reset.Event{Kind: reset.Done, Outcome: reset.OutcomeTimeout},
		})
	}
}

// use opens or releases the device. It returns whether the device was open.
func (n *Neighbour) use(on bool) (was bool) {
	n.locked(func() bool { was, n.opened = n.opened, on; return true })
	return was
}

func (n *Neighbour) later(within time.Duration, ev reset.Event) {
	n.next = append(n.next, deed{time.Now().Add(n.upTo(within)), ev})
}

// upTo draws a duration.
func (n *Neighbour) upTo(d time.Duration) time.Duration { return time.Duration(n.rnd.Int64N(int64(d))) }

// order has the neighbour's goroutine call f, unless its process is dead.
func (n *Neighbour) order(f func()) { n.orders <- f }

// Reset requests a reset.
func (n *Neighbour) Reset() { n.order(n.want) }

func (n *Neighbour) want() { n.later(1, reset.Event{Kind: reset.Want}) }

// FailInReset requests a reset in which the process dies, or which takes so long that the others call it
// silent.
func (n *Neighbour) FailInReset() { n.order(func() { n.doomed = true; n.want() }) }

// Kill kills the process, whatever it is doing. Another one starts within a second.
func (n *Neighbour) Kill() { n.order(n.die) }

// Stop stops the process, as SIGSTOP does.
func (n *Neighbour) Stop() { n.order(func() { n.stopped = true }) }

// Continue resumes a stopped process, as SIGCONT does.
func (n *Neighbour) Continue() { n.order(func() { n.stopped = false }) }

// Uses reports whether the neighbour has the device open, and no reset is under way.
func (n *Neighbour) Uses() (uses bool) {
	n.order(func() { uses = n.machine.State() == reset.StateUsing })
	n.order(func() {}) // the first one has returned
	return uses
}
