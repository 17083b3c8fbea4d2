// Package resetlocktest provides the lock files of a device in memory, and other daemons that share the
// device, for tests in virtual time. Real files would stop that time, because a goroutine that waits
// for a notification of a file counts as running.
package resetlocktest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/qprecovery/reset"
)

const (
	theDaemon    = "the daemon"
	aNeighbour   = "a neighbour"
	resetBy      = "reset by "
	completedBy  = "reset cut short and completed by "
	silentLeader = "a leader that is silent"
)

// Happenings are what a test with neighbours should have seen.
var Happenings = []string{
	resetBy + theDaemon, resetBy + aNeighbour, completedBy + theDaemon, completedBy + aNeighbour, silentLeader,
	string(reset.OutcomeDone), string(reset.OutcomeFailed), string(reset.OutcomeHeld),
}

// Files are the lock files of a device, in memory. The methods of T and Seen are called by any goroutine.
type Files struct {
	T    testing.TB
	Seen func(what string) // counts what happens: one of Happenings
	// InUse reports whether the daemon under test has the device open.
	InUse func() bool

	mu      sync.Mutex
	rec     reset.Record
	intent  *share // who leads; nil: no process
	excl    *share // who resets the device; nil: no process
	shares  []*share
	foreign bool // a program that takes no part has the device open
}

// share is the share of a process. It implements [resetlock.Sharer] and [reset.Kernel].
type share struct {
	*Files
	name    string
	machine *reset.Machine
	changes chan struct{}
	shared  bool        // holds the shared lock on use; guarded by mu
	open    func() bool // whether the process has the device open
}

// Open opens the files for the daemon under test.
func (l *Files) Open(c resetlock.Config) (resetlock.Sharer, error) {
	conf := c.Config
	conf.Name, conf.Device = theDaemon, reset.Device{} // as in the records of the neighbours
	return l.join(conf, l.InUse), nil
}

// HoldForeign lets a program that takes no part in the locks open the device, or close it again. It
// does not open a device that is being reset.
func (l *Files) HoldForeign(on bool) {
	l.locked(func() bool { l.foreign = on && l.excl == nil; return true })
}

func (l *Files) join(conf reset.Config, open func() bool) *share {
	conf.Shared, conf.Exclusive = true, true
	p := &share{Files: l, name: conf.Name, changes: make(chan struct{}, 1), open: open}
	p.machine = reset.New(conf, p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shares = append(l.shares, p)
	return p
}

// locked calls f with the mutex locked. It returns what f does.
func (l *Files) locked(f func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return f()
}

// Step implements [resetlock.Sharer].
func (p *share) Step(now time.Time, ev reset.Event, out []reset.Action) []reset.Action {
	actions := p.machine.Step(now, ev, nil)
	for _, a := range actions {
		switch a := a.(type) {
		case reset.Reset:
			p.checkAlone()
			deed := resetBy
			if a.Complete {
				deed = completedBy
			}
			p.Seen(deed + p.name)
		case reset.Ended:
			p.Seen(string(a.Outcome))
		case reset.Silent:
			p.Seen(silentLeader)
		}
	}
	return append(out, actions...)
}

// checkAlone fails if another process has the device open when this one resets it (R16).
func (p *share) checkAlone() {
	var others []*share
	p.locked(func() bool { others = slices.Clone(p.shares); return true })
	for _, q := range others {
		if q != p && q.open() {
			p.T.Errorf("reset by %s, while %s has the device open", p.name, q.name)
		}
	}
	if p.locked(func() bool { return p.foreign || p.excl != p || p.intent != p }) {
		p.T.Errorf("reset by %s without both locks, or while a program has the device open", p.name)
	}
}

// Status implements [resetlock.Sharer].
func (p *share) Status() resetlock.Status {
	return resetlock.Status{Shared: true, State: p.machine.State(), Intent: p.machine.Intent()}
}

// The rest of [resetlock.Sharer].
func (p *share) NextDeadline() (time.Time, bool) { return p.machine.NextDeadline() }
func (p *share) Changes() <-chan struct{}        { return p.changes }
func (p *share) Sharers() []string               { return nil }

func (p *share) Close() {
	p.Step(time.Now(), reset.Event{Kind: reset.Close}, nil)
	p.die()
}

// die releases the locks, as the kernel does for a process that exits.
func (p *share) die() {
	p.Drop()
	p.Disclaim()
}

// Read implements [reset.Kernel].
func (p *share) Read() (r reset.Record) {
	p.locked(func() bool { r = p.rec; return true })
	return r
}

// Write implements [reset.Kernel].
func (p *share) Write(r reset.Record) {
	p.locked(func() bool {
		if p.intent != p {
			p.T.Errorf("%s writes the intent without holding its lock", p.name)
		}
		p.rec = r
		for _, q := range p.shares {
			select {
			case q.changes <- struct{}{}:
			default:
			}
		}
		return true
	})
}

// Claim implements [reset.Kernel].
func (p *share) Claim() (ours bool, err error) {
	return p.locked(func() bool {
		if p.intent == nil {
			p.intent = p
		}
		return p.intent == p
	}), nil
}

// Disclaim implements [reset.Kernel].
func (p *share) Disclaim() {
	p.locked(func() bool {
		if p.intent == p {
			p.intent = nil
		}
		return true
	})
}

// Share implements [reset.Kernel].
func (p *share) Share() bool {
	p.Drop()
	return p.locked(func() bool {
		p.shared = p.excl == nil
		return p.shared
	})
}

// Exclude implements [reset.Kernel].
func (p *share) Exclude() (ours bool, err error) {
	return p.locked(func() bool {
		p.shared = false
		for _, q := range p.shares {
			if q.shared || p.excl != nil && p.excl != p {
				return false
			}
		}
		p.excl = p
		return true
	}), nil
}

// Drop implements [reset.Kernel].
func (p *share) Drop() {
	p.locked(func() bool {
		p.shared = false
		if p.excl == p {
			p.excl = nil
		}
		return true
	})
}

// Foreign implements [reset.Kernel].
func (p *share) Foreign() bool { return p.locked(func() bool { return p.foreign }) }

// Holders implements [reset.Kernel].
func (p *share) Holders() string { return "a program" }
