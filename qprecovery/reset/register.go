package reset

import (
	"slices"
	"time"
)

// receive handles a message. Only Hello may come from a stranger.
func (s *Server) receive(ev Received) {
	if hello, ok := ev.Msg.(Hello); ok {
		s.hello(ev, hello)
		return
	}
	c := s.clients.on(ev.Conn)
	if c == nil || !c.present {
		s.emit(Drop{ev.Conn, DropProtocol})
		return
	}
	switch m := ev.Msg.(type) {
	case Request:
		s.request()
	case Ready:
		c.ready = c.ready || (m.Reset == c.told && c.told != 0)
	case Leave:
		s.remove(c)
		s.emit(Drop{ev.Conn, DropLeft})
	default:
		s.misbehaved(c)
	}
}

// misbehaved closes a connection. Its process holds what it held.
func (s *Server) misbehaved(c *client) {
	s.emit(Drop{c.conn, DropProtocol})
	s.lost(c.conn)
}

// lost marks a client as absent; one of this process has ended.
func (s *Server) lost(conn Conn) {
	c := s.clients.on(conn)
	switch {
	case c == nil:
	case c.local:
		s.remove(c)
	default:
		c.present = false
	}
}

func (s *Server) died(conn Conn) {
	if c := s.clients.on(conn); c != nil {
		s.remove(c)
	}
}

func (s *Server) remove(c *client) {
	s.clients.remove(c)
	s.publish()
}

// hello registers a client, new or come back.
func (s *Server) hello(ev Received, m Hello) {
	if c := s.clients.on(ev.Conn); c != nil {
		s.misbehaved(c) // it has said so before
		return
	}
	c, refusal := s.admit(ev, m.ID)
	if c == nil {
		s.emit(Drop{ev.Conn, refusal})
		return
	}
	*c = client{id: m.ID, name: m.Name, conn: ev.Conn, pid: ev.Peer.PID, local: ev.Peer.Local, last: c.last}
	s.inherit(m.Roster)
	s.hearsay(m.Last)
	s.place(c, m)
	if m.Wants {
		s.request()
	}
	s.publish()
}

// admit finds or makes the entry that a Hello is for.
func (s *Server) admit(ev Received, id ClientID) (*client, DropReason) {
	c := s.clients.find(id)
	switch {
	case c == nil && len(s.clients) >= MaxMembers:
		return nil, DropFull
	case c == nil:
		return s.clients.add(id), 0
	case !c.inherited && c.pid != ev.Peer.PID:
		return nil, DropStolen
	case c.present:
		s.emit(Drop{c.conn, DropReplaced})
	}
	return c, 0
}

// inherit takes up the clients of an earlier host that have not come back yet.
// What does not fit is forgotten.
func (s *Server) inherit(roster []Member) {
	for _, r := range roster {
		if s.clients.find(r.ID) == nil && len(s.clients) < MaxMembers {
			c := s.clients.add(r.ID)
			c.name, c.pid, c.inherited = r.Name, r.PID, true
			s.forgetLater()
		}
	}
}

// forgetLater bounds how long inherited clients are waited for. A reset does so
// by itself.
func (s *Server) forgetLater() {
	if s.phase == PhaseIdle && s.clients.inherited() {
		s.forgetAt = s.now.Add(s.conf.Grace)
	}
}

func (s *Server) forgetInherited() {
	s.forgetAt = time.Time{}
	s.clients = slices.DeleteFunc(s.clients, func(c *client) bool { return c.inherited })
}

// hearsay learns from a client that saw a reset of an earlier host end: who still
// waits for that end is told. If the reset under way was only for those, it is
// off, and nobody has heard of it; else they are told of that one.
func (s *Server) hearsay(last Ended) {
	ended := false
	for _, c := range s.clients {
		if c.told != 0 && c.told == last.Reset {
			s.tellEnded(c, last)
			ended = true
		}
	}
	if ended && s.phase == PhasePending && !s.clients.told() {
		s.phase, s.deadline = PhaseIdle, time.Time{}
		s.forgetLater()
	}
	if s.phase != PhaseIdle {
		s.tellEverybody()
	}
}

// place gives a client that registers its place in the reset under way, by what
// it says of itself, which counts for more than what was believed of it.
func (s *Server) place(c *client, m Hello) {
	end, over := s.clients.ending(m.Told)
	c.present, c.told, c.last, c.ready = true, m.Told, m.Last, !m.Holds
	if over {
		s.tellEnded(c, end)
	}
	switch {
	case c.told != 0: // an earlier host left it waiting
		s.request()
	case s.phase == PhaseIdle:
		c.ready = false // it has the device open, or opens it now
	default:
		s.tellPending(c)
	}
}
