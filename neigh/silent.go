package neigh

import (
	"net/netip"
	"slices"
	"time"
)

// silence is the watch for a peer that falls silent while the host sends data to it.
// A peer that was restarted, and whose announcements were lost, has another QPN: it
// receives nothing, and so it falls silent.
//
//	data sent, alarm off         arm the alarm: silenceLimit from now, or after the pause
//	data received                stop the alarm, forget the pause
//	ARP or ND received           stop the alarm: the receiver of a one-way flow sends these
//	alarm                        ask for the peer's addresses, double the pause; if there
//	                             is nothing to ask for or from, keep the pause
//	its handle is ready          if armed, arm again: nothing was sent before
//	it came back at another QPN  stop the alarm, forget the pause
//	Detached, or the peer goes   stop the alarm, forget the pause
type silence struct {
	alarm alarm[*peer]
	asked time.Time     // when the peer was last asked for
	pause time.Duration // from then on; 0: not asked for since it sent data
}

// silent are the peers for which the table may have to ask. Any stranger can invent
// peers by ARP or ND, and the host may send to them. So peers that have sent data go
// first.
type silent struct {
	proven, others alarms[*peer]
	rate           rate
}

// asks returns the alarms to which that of p belongs. p.proven may change only while
// the alarm is off.
func (s *silent) asks(p *peer) *alarms[*peer] {
	if p.proven {
		return &s.proven
	}
	return &s.others
}

// look reads the marks of the data path. Its cost is O(peers), once per
// lookInterval.
func (t *Table) look() {
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			if p.wasSent() {
				t.promote(p)
			}
			if p.wasHeard() {
				t.hears(p)
			}
		})
	}
}

// awaits notes that data was sent to p, which should answer from now on.
func (t *Table) awaits(p *peer) {
	if p.silence.alarm.pos > 0 || !t.link.up {
		return
	}
	at := t.now.Add(silenceLimit)
	if again := p.silence.asked.Add(p.silence.pause); again.After(at) {
		at = again
	}
	t.silent.asks(p).set(&p.silence.alarm, p, at)
}

// speaks notes that p was heard, which does not show that it receives data.
func (t *Table) speaks(p *peer) { t.silent.asks(p).stop(&p.silence.alarm) }

// hears notes that p sent data.
func (t *Table) hears(p *peer) {
	t.answers(p)
	p.proven = true
}

// answers notes that the table need not ask for p.
func (t *Table) answers(p *peer) {
	t.speaks(p)
	p.silence.pause = 0
}

// verifyAt returns when verifyDue has something to do, zero for never.
func (t *Table) verifyAt() time.Time {
	at := t.silent.proven.next()
	if other := t.silent.others.next(); at.IsZero() || !other.IsZero() && other.Before(at) {
		at = other
	}
	if !at.IsZero() && at.Before(t.silent.rate.end) && !t.silent.rate.left(at, maxAskRate) {
		return t.silent.rate.end
	}
	return at
}

// verifyDue asks for the peers whose alarms are due, of each kind the earliest first,
// so that no peer waits for repetitions about others. Alarms beyond the rate stay
// armed.
func (t *Table) verifyDue() {
	for t.silent.rate.left(t.now, maxAskRate) {
		p, ok := t.silent.proven.due(t.now)
		if !ok {
			p, ok = t.silent.others.due(t.now)
		}
		if !ok {
			return
		}
		t.verify(p)
	}
}

// verify asks for the addresses of p, which was silent for too long, the latest claim
// first. The interface that has them answers, and p moves to its endpoint. If the host
// has no address to ask from, verify does nothing, and the next data for p arms the alarm
// again.
func (t *Table) verify(p *peer) {
	if p.wasHeard() {
		t.hears(p)
		return
	}
	if p.handle.state != handleReady {
		return // nothing was sent
	}
	asked := 0
	for _, ip := range slices.Backward(p.ips) {
		source := t.hosts.source(ip, netip.Addr{})
		if source.IsUnspecified() {
			continue
		}
		if asked == maxAskedIPs || !t.silent.rate.take(t.now, maxAskRate) {
			break
		}
		t.ask(source, ip)
		asked++
	}
	if asked == 0 {
		return
	}
	p.silence.asked = t.now
	p.silence.pause = min(max(2*p.silence.pause, askPause), maxAskPause)
	t.stats.Silences++
}

// rate counts how often something was done in the present second. The zero value has
// counted nothing.
type rate struct {
	end  time.Time // of the second
	done int       // in that second
}

// left reports whether it may be done once more now.
func (r *rate) left(now time.Time, most int) bool { return r.done < most || !now.Before(r.end) }

// take reports the same as left; if true, it counts once more.
func (r *rate) take(now time.Time, most int) bool { //nolint:unparam // three limits that are equal by chance
	if !r.left(now, most) {
		return false
	}
	if !now.Before(r.end) {
		*r = rate{end: now.Add(time.Second)}
	}
	r.done++
	return true
}
