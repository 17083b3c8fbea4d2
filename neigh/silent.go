package neigh

import (
	"net/netip"
	"slices"
	"time"
)

// silence detects that a peer falls silent while the host sends data to it. A
// restarted peer whose announcements were lost has another QPN, so it receives
// nothing and falls silent.
//
//	data sent, alarm off         arm the alarm: silenceLimit from now, or after the pause
//	data received                stop the alarm, forget the pause
//	ARP or ND received           stop the alarm: the receiver of a one-way flow sends these
//	alarm                        renew its handle; request the peer's addresses, double the
//	                             pause; if there is nothing to request or no source
//	                             address, keep the pause
//	its handle is ready          if armed, rearm: nothing was sent before
//	it moved to another QPN      stop the alarm, forget the pause
//	Detached, or the peer goes   stop the alarm, forget the pause
type silence struct {
	alarm alarm[*peer]
	asked time.Time     // time of the last requests for the peer
	pause time.Duration // from then on; 0 if it was not requested since it last sent data
}

// silent holds the alarms of peers that may be silent. Anyone can invent peers by
// ARP or ND, and the host may send to them, so peers that have sent data go first.
type silent struct {
	core
	proven, others alarms[*peer]
	rate           rate
}

// alarmsOf returns the alarms that p's alarm belongs to. p.proven may change only
// while the alarm is off.
func (s *silent) alarmsOf(p *peer) *alarms[*peer] {
	if p.proven {
		return &s.proven
	}
	return &s.others
}

// readMarks reads the marks of the data path. It costs O(peers), once per
// markInterval.
func (t *roster) readMarks() {
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			if p.wasSent() {
				t.promote(p)
			}
			if p.wasHeard() {
				t.dataReceived(p)
			}
		})
	}
}

// dataSent notes that data was sent to p, and arms its alarm.
func (t *silent) dataSent(p *peer) {
	if p.silence.alarm.pos > 0 || !t.host.link.up {
		return
	}
	at := t.step.now.Add(silenceLimit)
	if again := p.silence.asked.Add(p.silence.pause); again.After(at) {
		at = again
	}
	t.alarmsOf(p).set(&p.silence.alarm, p, at)
}

// stopAlarm stops p's alarm but keeps the pause: ARP or ND from p does not
// prove that it receives data.
func (t *silent) stopAlarm(p *peer) { t.alarmsOf(p).stop(&p.silence.alarm) }

// dataReceived notes that p has sent data.
func (t *silent) dataReceived(p *peer) {
	t.resetSilence(p)
	p.proven, p.heardAt = true, t.step.now
}

// resetSilence stops p's alarm and forgets the pause.
func (t *silent) resetSilence(p *peer) {
	t.stopAlarm(p)
	p.silence.pause = 0
}

// verifyAt returns when verifyDue must run next, or zero for never.
func (t *silent) verifyAt() time.Time {
	at := t.proven.next()
	if other := t.others.next(); at.IsZero() || !other.IsZero() && other.Before(at) {
		at = other
	}
	if !at.IsZero() && at.Before(t.rate.end) && !t.rate.left(at, maxAskRate) {
		return t.rate.end
	}
	return at
}

// verifyDue verifies the peers whose alarms are due, those that have sent data first
// and the earliest alarms first, so that no peer waits for repeated requests for
// others. Alarms beyond the rate stay armed.
func (t *roster) verifyDue() {
	for t.rate.left(t.step.now, maxAskRate) {
		p, ok := t.proven.due(t.step.now)
		if !ok {
			p, ok = t.others.due(t.step.now)
		}
		if !ok {
			return
		}
		t.verify(p)
	}
}

// verify requests the addresses of p, which has been silent for too long, the latest
// claim first. The interface that has them answers, and p moves to its endpoint. If the host has no source
// address for a request, the next data for p arms the alarm again. verify also renews the handle of p, in
// case the path to it has changed.
func (t *roster) verify(p *peer) {
	if p.wasHeard() {
		t.dataReceived(p)
		return
	}
	if p.handle.state != handleReady {
		return // nothing has been sent yet
	}
	asked := 0
	for _, ip := range slices.Backward(p.ips) {
		source := t.host.ips.source(ip, netip.Addr{})
		if source.IsUnspecified() {
			continue
		}
		if asked == maxAskedIPs || !t.rate.allow(t.step.now, maxAskRate) {
			break
		}
		t.host.sendRequest(source, ip)
		asked++
	}
	t.renew(p)
	if asked == 0 {
		return
	}
	p.silence.asked = t.step.now
	p.silence.pause = min(max(2*p.silence.pause, askPause), maxAskPause)
	t.step.stats.Silences++
}

// rate limits an operation to a number of times per second. The zero value is ready
// to use.
type rate struct {
	end  time.Time // end of the current second
	done int       // count in that second
}

// left reports whether the operation is allowed now.
func (r *rate) left(now time.Time, most int) bool { return r.done < most || !now.Before(r.end) }

// allow reports whether the operation is allowed now, and counts it if so.
func (r *rate) allow(now time.Time, most int) bool {
	if !r.left(now, most) {
		return false
	}
	if !now.Before(r.end) {
		*r = rate{end: now.Add(time.Second)}
	}
	r.done++
	return true
}
