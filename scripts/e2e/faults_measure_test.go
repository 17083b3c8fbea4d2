package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Limits of a recovery, far above the expected values; the figures are in the
// table.
const (
	// recoveryLimit is ten times the grace period of 3 s, which is the longest
	// wait in a recovery.
	recoveryLimit = 30 * time.Second
	// carrierBound is how long frames are held before the carrier goes down.
	carrierBound = 500 * time.Millisecond
	// agreement is the tolerated difference between the outages measured by the
	// daemon and by the probe, in addition to a tenth of the outage: ten times
	// the noise of a probe on a busy machine.
	agreement = 100 * time.Millisecond
	// mendLimit is how long after the end of a lasting fault a ping may remain
	// unanswered: ten times the time seen on a busy machine.
	mendLimit = 5 * time.Second
)

// row holds the measurements of one kind of fault.
type row struct {
	fault   fault
	samples []sample
	lost    []string // reasons of lost connections
}

// sample is one injection.
type sample struct {
	rung      string
	detection time.Duration // injected -> detected; for faults with a rung
	repair    time.Duration // detected -> healthy, as reported by the daemon; mended -> answered for lasting faults
	outage    time.Duration // as reported by the daemon; 0 if it reports none
	silence   time.Duration // as seen by the probe
	tcp       time.Duration // from its end until the connection carried data again
	carrier   int           // changes
	drops     map[string]uint64
}

// measure injects a fault several times, each time into a healthy pair.
func (r *row) measure(t *testing.T, times int, say func(string, ...any)) {
	r.measureIn(t, newFaultyPair(t), times, say)
}

// measureIn is measure in an existing pair.
func (r *row) measureIn(t *testing.T, p *pair, times int, say func(string, ...any)) {
	for n := range times {
		if n > 0 && r.fault.perDaemon > 0 && n%r.fault.perDaemon == 0 {
			p.restart()
		}
		s := p.measure(t, r.fault)
		if !s.agrees(r.fault) { // a pause of the machine is unlikely to occur twice
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

// measure injects a fault, ends it if it lasts, and waits until all is healthy.
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

// requireWell waits until the effects of the previous fault are over: pings are
// answered and the connection carries data.
func (p *pair) requireWell(t *testing.T) {
	t.Helper()
	p.probe.waitAnswered(t, recoveryLimit)
	if _, err := p.stream.waitMoves(streamLimit); err != nil {
		t.Fatalf("before the fault: %v", err)
	}
}

// mend ends a lasting fault after its time, and returns the time of its end.
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

// waitWell waits until all recoveries have ended. If the fault must cause one, it
// waits for at least one.
func (j *journal) waitWell(t *testing.T, n int, f fault) {
	t.Helper()
	if f.rung == noRung {
		return
	}
	j.wait(t, n, recoveryLimit, "recovery of "+ifName, func(e event) bool { return e.ends() && e.Scope == ifName })
}

// read takes the interface's times and the highest rung, also of the device,
// from the daemon's events.
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

// check compares a sample with the expected outcome; the limits are ten times
// the goals.
func (s sample) check(t *testing.T, f fault) {
	t.Helper()
	if s.rung != f.rung && (f.or == noRung || s.rung != f.or) {
		t.Errorf("rung %q, want %q", s.rung, f.rung)
	}
	if goal := goals[f.rung]; goal > 0 && !f.waits && s.repair > 10*goal {
		t.Errorf("repaired in %v, want at most ten times the goal of %v", s.repair, goal)
	}
	if f.mend != nil && s.repair > mendLimit {
		t.Errorf("first answer %v after the end of the fault, want at most %v", s.repair, mendLimit)
	}
	if !s.agrees(f) {
		t.Errorf("the daemon measured an outage of %v, the probe %v", s.outage, s.silence)
	}
	if s.outage > 0 && s.outage < carrierBound/2 && s.carrier > 0 {
		t.Errorf("the carrier changed %d times within %v", s.carrier, s.outage)
	}
}

// agrees reports whether the outage reported by the daemon agrees with the
// probe's. It may lack the time before detection. If the daemon reports none,
// there was no recovery.
func (s sample) agrees(f fault) bool {
	apart := s.silence - s.outage
	tolerance := agreement + s.outage/10
	return s.outage == 0 || apart < tolerance+s.detection && (f.partly || apart > -tolerance)
}

// drops returns the non-zero counters of lost frames.
func (b book) drops() map[string]uint64 {
	drops := map[string]uint64{}
	for name, n := range b.values {
		// The counters of a reopened device start at 0.
		if lossCounter(name) && n > 0 && n < 1<<63 {
			drops[name] = n
		}
	}
	return drops
}

var dropPrefixes = []string{"tx_drop_", "tx_segment_drop_", "tx_wc_", "rx_drop_", "rx_wc_", "neigh_drop_", "tap_drop_", "kernel_tx_dropped", "kernel_rx_dropped"}

func lossCounter(name string) bool {
	return slices.ContainsFunc(dropPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.Contains(recvDrops, name) || slices.Contains(sendDrops, name)
}
