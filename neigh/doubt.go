package neigh

import (
	"net/netip"
	"slices"
	"time"
)

// doubt is whether a peer still exists after another queue pair at its GID has claimed one of its addresses. Either that
// address has moved, such as that of a guest; or the peer was restarted, and its successor does not know yet which
// other addresses it has. The table asks the peer itself for those. If it stays silent, they are its successor's.
type doubt struct {
	alarm     alarm[*peer]
	since     time.Time
	tries     int
	successor *peer
}

// doubt begins to doubt p. Without an address it only has to send something: the table cannot ask for that.
func (s *peers) doubt(p, successor *peer) {
	if p.heard.seen() { // before
		s.silent.received(p)
	}
	p.doubt.since, p.doubt.tries, p.doubt.successor = s.step.now, 0, successor
	s.askDoubted(p)
}

// askDoubted asks p itself for one of its addresses.
func (s *peers) askDoubted(p *peer) {
	p.doubt.tries++
	s.doubts.set(&p.doubt.alarm, p, s.step.now.Add(doubtInterval))
	if len(p.ips) == 0 || p.handle.state != handleReady {
		return
	}
	ip := p.ips[len(p.ips)-1]
	if source := s.host.stations.source(ip, netip.Addr{}); !source.IsUnspecified() {
		s.step.stats.Requests++
		s.step.emit(SendFabric{s.host.link.dest(p), s.host.newRequest(source, ip)})
	}
}

// expireDoubts ends the doubts about peers that were heard, and asks the others again, or gives them up.
func (s *peers) expireDoubts() {
	for p, ok := s.doubts.due(s.step.now); ok; p, ok = s.doubts.due(s.step.now) {
		next := p.doubt.successor
		heard, bare := p.heard.mark.Load() || p.heardAt.After(p.doubt.since), len(p.ips) == 0
		switch {
		case heard && bare: // perhaps by late packets of a queue pair that is gone, so it must go on sending
			s.doubt(p, next)
			continue
		case heard, !bare && s.live.byEndpoint[next.endpoint] != next:
		case !bare && p.handle.state != handleReady: // the host sends nothing to it
		case p.doubt.tries < doubtTries:
			s.askDoubted(p)
			continue
		default:
			ips := slices.Clone(p.ips)
			s.remove(p)
			for _, ip := range ips {
				s.live.bind(ip, next)
			}
		}
		p.doubt.successor = nil
	}
}
