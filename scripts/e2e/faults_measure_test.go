package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Limits of a recovery, far above what is expected; the figures are in the table.
const (
	// recoveryLimit is ten times the grace period of 3 s, which is the longest
	// that a recovery waits for.
	recoveryLimit = 30 * time.Second
	// carrierBound is how long frames are held before the carrier goes down.
	carrierBound = 500 * time.Millisecond
	// agreement is how far the outage that the daemon counts may lie from the one
	// that the probe sees, besides a tenth of it: ten times the noise of a probe
	// on a busy machine.
	agreement = 100 * time.Millisecond
	// mendLimit is how long after the end of a fault that lasts a ping may go
	// without an answer: ten times what is seen on a busy machine.
	mendLimit = 5 * time.Second
)

// row is what was measured of one kind of fault.
type row struct {
	fault   fault
	samples []sample
	lost    []string // connections: why
}

// sample is one injection.
type sample struct {
	rung      string
	detection time.Duration // injected -> detected; of faults with a rung
	repair    time.Duration // detected -> healthy by the daemon's account; mended -> answered where it lasts
	outage    time.Duration // by the daemon's account, 0: it has none
	silence   time.Duration // by the probe's
	tcp       time.Duration // from then until the connection moved
	carrier   int           // changes
	drops     map[string]uint64
}

// measure injects a fault some times, each at a pair that is well.
func (r *row) measure(t *testing.T, times int, say func(string, ...any)) {
	p := newFaultyPair(t)
	for n := range times {
		if n > 0 && r.fault.perDaemon > 0 && n%r.fault.perDaemon == 0 {
			p.restart()
		}
		s := p.measure(t, r.fault)
		if !s.agrees(r.fault) { // a machine that paused does not do so twice
			say("  %d/%d measured again: %v", n+1, times, s)
			if r.fault.perDaemon > 0 {
				p.restart()
			}
			s = p.measure(t, r.fault)
		}
		var err error
		if s.tcp, err = p.stream.waitMoves(streamLimit); err != nil {
			r.lost = append(r.lost, err.Error())
		}
		p.requireKept(t)
		s.check(t, r.fault)
		r.samples = append(r.samples, s)
		say("  %d/%d %v", n+1, times, s)
	}
	if len(r.lost) > 0 && r.fault.rung != giveUp {
		t.Errorf("the TCP connection: %v", r.lost)
	}
}

// measure injects a fault, ends it where it lasts, and waits until all is well.
func (p *pair) measure(t *testing.T, f fault) (s sample) {
	t.Helper()
	p.requireWell(t)
	book, changes, events := p.faulty.book(), p.faulty.carrierChanges(), p.journal.len()

	injected := time.Now()
	f.inject(t, p)
	mended := p.mend(t, f)
	p.journal.waitWell(t, events, f)
	p.probe.waitAnswered(t, recoveryLimit)

	s.read(injected, p.journal.since(events))
	s.silence = p.probe.silence(injected)
	if f.mend != nil {
		s.repair = p.probe.silence(mended)
	}
	s.carrier = p.faulty.carrierChanges() - changes
	s.drops = p.faulty.book().since(book).drops()
	return s
}

// requireWell waits until nothing is left of what was before: a ping is answered
// and the connection moves.
func (p *pair) requireWell(t *testing.T) {
	t.Helper()
	p.probe.waitAnswered(t, recoveryLimit)
	if _, err := p.stream.waitMoves(streamLimit); err != nil {
		t.Fatalf("before the fault: %v", err)
	}
}

// mend ends a fault that lasts, after a while, and returns when.
func (p *pair) mend(t *testing.T, f fault) time.Time {
	t.Helper()
	if f.mend == nil {
		return time.Time{}
	}
	time.Sleep(f.hold)
	mended := time.Now()
	f.mend(t, p)
	return mended
}

// waitWell waits until every recovery that began is over, and for one at least
// where the fault is to have one.
func (j *journal) waitWell(t *testing.T, n int, f fault) {
	t.Helper()
	if f.rung == noRung {
		return
	}
	j.wait(t, n, recoveryLimit, "recovery of "+ifName, func(e event) bool { return e.ends() && e.Scope == ifName })
}

// read takes what the daemon says of it: the interface's view, and the highest
// rung of the device besides.
func (s *sample) read(injected time.Time, events []event) {
	for _, e := range events {
		if !e.ends() {
			continue
		}
		if slices.Index(rungs, e.Rung) > slices.Index(rungs, s.rung) {
			s.rung = e.Rung
		}
		if e.Scope == ifName {
			s.detection = e.detected().Sub(injected)
			s.repair += e.duration()
			s.outage += e.outage()
		}
	}
}

// check compares with what is to be, times with limits ten times wide.
func (s sample) check(t *testing.T, f fault) {
	t.Helper()
	if s.rung != f.rung && (f.or == noRung || s.rung != f.or) {
		t.Errorf("rung %q, want %q", s.rung, f.rung)
	}
	if goal := goals[f.rung]; goal > 0 && !f.waits && s.repair > 10*goal {
		t.Errorf("repaired in %v, goal %v", s.repair, goal)
	}
	if f.mend != nil && s.repair > mendLimit {
		t.Errorf("answered %v after the end of the fault", s.repair)
	}
	if !s.agrees(f) {
		t.Errorf("an outage of %v by the daemon, of %v by the probe", s.outage, s.silence)
	}
	if s.outage > 0 && s.outage < carrierBound/2 && s.carrier > 0 {
		t.Errorf("the carrier changed %d times within %v", s.carrier, s.outage)
	}
}

// agrees reports whether the daemon's account of the outage is what the probe
// saw; it may lack what was before it noticed. Where it has none, there was no
// recovery.
func (s sample) agrees(f fault) bool {
	apart := s.silence - s.outage
	tolerance := agreement + s.outage/10
	return s.outage == 0 || apart < tolerance+s.detection && (f.partly || apart > -tolerance)
}

// drops are the reasons for which frames ended, with how many did.
func (b book) drops() map[string]uint64 {
	drops := map[string]uint64{}
	for name, n := range b.values {
		// A counter of a device that was opened anew begins at 0.
		if lossCounter(name) && n > 0 && n < 1<<63 {
			drops[name] = n
		}
	}
	return drops
}

var dropPrefixes = []string{"tx_drop_", "tx_wc_", "rx_drop_", "rx_wc_", "neigh_drop_", "tap_drop_", "kernel_tx_dropped", "kernel_rx_dropped"}

func lossCounter(name string) bool {
	return slices.ContainsFunc(dropPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.Contains(recvDrops, name) || slices.Contains(sendDrops, name)
}
