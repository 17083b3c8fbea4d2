package e2e

import (
	"math/rand/v2"
	"testing"
	"time"
)

// deaths are faults whose recoveries cover every rung. In each recovery a daemon
// is killed at random times up to spread, which is about the duration of that
// recovery.
var deaths = []struct {
	name   string
	inject func(*testing.T, *pair)
	rung   string
	spread time.Duration
	mend   func(*testing.T, *pair) // runs before the next daemon starts; may be nil
}{
	{"R09/killed while a QP is resumed", strike("send_error_sqe"), resumeQP, 5 * time.Millisecond, nil},
	{"R09/killed while a QP is reset", strike("send_error_err"), resetQP, 5 * time.Millisecond, nil},
	{"R09/killed while a QP is recreated", strike("reset_fails", "send_error_err"), recreateQP, 10 * time.Millisecond, nil},
	{"R09/killed while a CQ is rebuilt", strike("cq_overrun"), rebuildCQ, 10 * time.Millisecond, nil},
	{"R09/killed while a device is reset", strike("device_fatal"), resetDevice, 20 * time.Millisecond, nil},
	{"R09/killed while a device is waited for", strike("unplug"), waitDevice, 20 * time.Millisecond, nil},
	{"R09/killed after it gave up", giveUpWaiting, giveUp, 20 * time.Millisecond, nil},
	// The software HCA has no driver, so the netdev is the operator's to bring back. In scripts/vm,
	// daemons bring back the devices of resets that were cut short (R21).
	{"R09/killed while its netdev is missing", pullOut, waitDevice, 20 * time.Millisecond, putBack},
}

// A daemon that is killed in any rung leaves ib0 with its addresses and routes;
// the next daemon adopts it and becomes healthy, and the TCP connection
// survives.
func TestKilledInAnyRung(t *testing.T) {
	if enterLong(t) {
		return
	}
	times, say := timesEach(t), progress(t)
	for _, d := range deaths {
		t.Run(d.name, func(t *testing.T) {
			p := newFaultyPair(t)
			for n := range 2 * times {
				at := p.killDuring(t, d.inject, d.rung, rand.N(d.spread), n%2 == 0)
				if d.mend != nil {
					d.mend(t, p)
				}
				say("%s, %d/%d: %v after the fault; well again %v after the next start", d.name, n+1, 2*times, at, p.restartKilled(t))
			}
		})
	}
}

// killDuring kills the daemon some time after a fault, or once it has reported
// the rung. It returns the time from the fault to the kill.
func (p *pair) killDuring(t *testing.T, inject func(*testing.T, *pair), rung string, after time.Duration, said bool) time.Duration {
	t.Helper()
	n := p.journal.len()
	start := time.Now()
	inject(t, p)
	if said {
		p.journal.wait(t, n, recoveryLimit, rung, func(e event) bool { return e.Kind == entered && e.Rung == rung })
	} else {
		time.Sleep(after)
	}
	at := time.Since(start)
	p.faulty.daemon.kill()
	return at
}

// restartKilled starts the next daemon and checks that nothing was lost.
func (p *pair) restartKilled(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	p.resume()
	p.outside.waitReaches(p.faulty)
	took := time.Since(start)
	if i := p.faulty.iface(); !i.Adopted || i.State != "up" {
		t.Errorf("%s: adopted %t, state %s: %s, want it adopted and up", ifName, i.Adopted, i.State, i.Reason)
	}
	p.requireKept(t)
	if _, err := p.stream.waitMoves(streamLimit); err != nil {
		t.Error(err)
	}
	return took
}
