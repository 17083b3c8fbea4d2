package neigh

import (
	"net/netip"
	"slices"
	"time"
)

// silence is how a peer is watched while the host sends data to it. A peer that
// was restarted, and whose announcements were lost, has another QPN and receives
// nothing: it falls silent.
//
//	data sent, alarm off         arm it: silenceLimit from now, or after the pause
//	data heard                   stop it, forget the pause
//	ARP or ND heard              stop it: a flow in one direction answers that way
//	alarm                        ask for its addresses, double the pause; a peer that
//	                             cannot be asked for keeps its pause
//	its handle is ready          if armed, start again: nothing was sent before
//	it came back at another QPN  stop it, forget the pause
//	Detached, or the peer goes   stop it, forget the pause
type silence struct {
	alarm alarm[*peer]
	asked time.Time     // when the peer was last asked for
	pause time.Duration // from then on; 0: not asked for since it sent data
}

// silent are the peers that may have to be asked for. Any stranger can invent peers
// by ARP or ND, and the host may send to them. So those that have sent data go first.
type silent struct {
	proven, others alarms[*peer]
	rate           rate
}

// asks returns the alarms of peers like p. While its alarm is on, p stays there.
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

// speaks notes that p was heard, but not that it receives data.
func (t *Table) speaks(p *peer) { t.silent.asks(p).stop(&p.silence.alarm) }

// hears notes that p sent data.
func (t *Table) hears(p *peer) {
	t.answers(p)
	p.proven = true
}

// answers notes that p needs no asking for.
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

// verifyDue asks for the peers whose time has come, of each kind the earliest first,
// so that none waits for the repetitions of others. Those beyond the rate stay armed.
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

// verify asks for p, which was silent for too long, by its addresses, the latest
// claim first. The interface that has them answers, and becomes p. Where the host
// has no address to ask from, verify does nothing, and the next data for p arms the
// alarm again.
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

// rate bounds how often something is done per second. The zero value is unused.
type rate struct {
	end  time.Time // of the second
	done int       // in it
}

// left reports whether it may be done at now once more.
func (r *rate) left(now time.Time, most int) bool { return r.done < most || !now.Before(r.end) }

// take is left, and counts it as done.
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
