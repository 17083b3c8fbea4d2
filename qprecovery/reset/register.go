package reset

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
	c, refusal := s.admit(ev, m)
	if c == nil {
		s.emit(Drop{ev.Conn, refusal})
		return
	}
	c.name, c.present, c.inherited = m.Name, true, false
	c.conn, c.pid, c.local = ev.Conn, ev.Peer.PID, ev.Peer.Local
	s.inherit(m)
	s.place(c, m)
	s.hearsay(m.Last)
	if m.Wants {
		s.request()
	}
	s.publish()
}

// admit finds or makes the entry that a Hello is for.
func (s *Server) admit(ev Received, m Hello) (*client, DropReason) {
	if s.clients.on(ev.Conn) != nil {
		return nil, DropProtocol
	}
	c := s.clients.find(m.ID)
	switch {
	case c == nil && len(s.clients) >= MaxMembers && !s.clients.forgetOne():
		return nil, DropFull
	case c == nil:
		return s.clients.add(m.ID), 0
	case !c.inherited && c.pid != ev.Peer.PID:
		return nil, DropStolen
	case c.present:
		s.emit(Drop{c.conn, DropReplaced})
	}
	return c, 0
}

// inherit takes up the clients of an earlier host that have not come back yet.
func (s *Server) inherit(m Hello) {
	for _, r := range m.Roster {
		if s.clients.find(r.ID) != nil || len(s.clients) >= MaxMembers {
			continue
		}
		c := s.clients.add(r.ID)
		c.name, c.pid, c.inherited = r.Name, r.PID, true
		if s.phase == PhaseIdle {
			s.forgetAt = s.now.Add(s.conf.Grace)
		}
	}
}

// place gives a client that registers its place in the reset under way, by what
// it says of itself, which counts for more than what was believed of it.
func (s *Server) place(c *client, m Hello) {
	end, ended := s.clients.ending(m.Told)
	c.told, c.last, c.ready = m.Told, m.Last, !m.Holds
	if m.Told != 0 && ended {
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

// hearsay learns from a client that saw a reset of an earlier host end: who waits
// for that end is told. If the reset under way was only for those, it is off.
func (s *Server) hearsay(last Ended) {
	waited := false
	for _, c := range s.clients {
		if c.told != 0 && c.told == last.Reset {
			waited = true
			s.tellEnded(c, last)
			if s.phase != PhaseIdle && c.present {
				s.retell = append(s.retell, c)
			}
		}
	}
	_ = waited
}
