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
	step           *step
	host           *host
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

// sent notes that data was sent to p, and arms its alarm.
func (s *silent) sent(p *peer) {
	if p.silence.alarm.pos > 0 || !s.host.link.up {
		return
	}
	at := s.step.now.Add(silenceLimit)
	if again := p.silence.asked.Add(p.silence.pause); again.After(at) {
		at = again
	}
	s.alarmsOf(p).set(&p.silence.alarm, p, at)
}

// stop stops p's alarm but keeps the pause: ARP or ND from p does not prove that it
// receives data.
func (s *silent) stop(p *peer) { s.alarmsOf(p).stop(&p.silence.alarm) }

// received notes that p has sent data.
func (s *silent) received(p *peer) {
	s.reset(p)
	p.proven, p.heardAt = true, s.step.now
}

// reset stops p's alarm and forgets the pause.
func (s *silent) reset(p *peer) {
	s.stop(p)
	p.silence.pause = 0
}

// next returns when due has the next peer, or zero for never.
func (s *silent) next() time.Time {
	at := s.proven.next()
	if other := s.others.next(); at.IsZero() || !other.IsZero() && other.Before(at) {
		at = other
	}
	if !at.IsZero() && at.Before(s.rate.end) && !s.rate.left(at, maxAskRate) {
		return s.rate.end
	}
	return at
}

// due returns a peer whose alarm is due, and turns that off: those that have sent data
// first and the earliest alarms first, so that no peer waits for repeated requests for
// others. Alarms beyond the rate stay armed.
func (s *silent) due() (p *peer, ok bool) {
	if !s.rate.left(s.step.now, maxAskRate) {
		return nil, false
	}
	if p, ok = s.proven.due(s.step.now); !ok {
		p, ok = s.others.due(s.step.now)
	}
	return p, ok
}

// verify requests the addresses of p, which has been silent for too long, the latest
// claim first, and reports whether p is still silent. The interface that has them answers, and
// p moves to its endpoint. If the host has no source address for a request, the next data for
// p arms the alarm again.
func (s *silent) verify(p *peer) bool {
	if p.heard.seen() {
		s.received(p)
		return false
	}
	if p.handle.state != handleReady {
		return false // nothing has been sent yet
	}
	asked := 0
	for _, ip := range slices.Backward(p.ips) {
		source := s.host.stations.source(ip, netip.Addr{})
		if source.IsUnspecified() {
			continue
		}
		if asked == maxAskedIPs || !s.rate.allow(s.step.now, maxAskRate) {
			break
		}
		s.host.sendRequest(source, ip)
		asked++
	}
	if asked > 0 {
		p.silence.asked = s.step.now
		p.silence.pause = min(max(2*p.silence.pause, askPause), maxAskPause)
		s.step.stats.Silences++
	}
	return true
}
