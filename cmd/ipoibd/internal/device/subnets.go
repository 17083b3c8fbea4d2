package device

import (
	"fmt"
	"log/slog"
	"sync"

	"ipoibd/cmd/ipoibd/internal/subnet"
	"ipoibd/hca"
)

// subnets are the clients of the subnet administrators of a session's ports: one for each port that a user has asked
// for. They are users of the session, which end when it is retired.
type subnets struct {
	log *slog.Logger

	mu    sync.Mutex // guards what follows
	ports map[uint8]*subnet.Port
	attrs []hca.PortAttr
}

// Subnet returns the client of the subnet administrator of a port, or nil if the session has ended.
func (s *Session) Subnet(num uint8) *subnet.Port {
	s.subnets.mu.Lock()
	defer s.subnets.mu.Unlock()
	if p := s.subnets.ports[num]; p != nil {
		return p
	}
	who := fmt.Sprintf("the client of the subnet administrator of port %d", num)
	if int(num) > len(s.subnets.attrs) || !s.Acquire(who) {
		return nil
	}
	p := subnet.Open(s, num, s.subnets.attrs[num-1], s.subnets.log, func() { s.Release(who) })
	s.subnets.ports[num] = p
	return p
}

// see reports the present attributes of all ports.
func (s *subnets) see(attrs []hca.PortAttr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attrs = attrs
	for num, p := range s.ports {
		p.View(attrs[num-1])
	}
}

// event reports an async event of a port.
func (s *subnets) event(ev hca.AsyncEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.ports[uint8(ev.On.Num)]; p != nil && ev.On.Kind == hca.KindPort {
		p.Event(ev.Type)
	}
}

// counters returns the counters of all clients.
func (s *subnets) counters() (out []hca.Counter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.ports {
		out = append(out, p.Stats().Counters()...)
	}
	return out
}

// stop ends all clients.
func (s *subnets) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.ports {
		p.Stop()
	}
	clear(s.ports)
}
