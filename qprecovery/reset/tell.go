package reset

import "slices"

func (s *Server) tellPending(c *client) {
	c.told = s.resetID
	s.emit(Send{c.conn, Pending{Reset: s.resetID}})
}

// tellEverybody of the reset under way who is there and knows of none.
func (s *Server) tellEverybody() {
	for _, c := range s.clients {
		if c.present && c.told == 0 {
			s.tellPending(c)
		}
	}
}

// tellEnded ends the reset that a client was told of, which bears the number of
// the host that told it. One who is not there is told on coming back, and until
// then holds what it held.
func (s *Server) tellEnded(c *client, end Ended) {
	end.Reset = c.told
	c.told, c.last = 0, Ended{Reset: end.Reset, Outcome: end.Outcome}
	if c.present {
		c.ready = false
		s.emit(Send{c.conn, end})
	}
}

// publish sends the roster to everybody if it changed, or else to newcomers.
func (s *Server) publish() {
	now := Roster{Host: s.clients.host(), Members: foreignOf(s.clients)}
	changed := now.Host != s.roster.Host || !slices.Equal(now.Members, s.roster.Members)
	s.roster = now
	for _, c := range s.clients {
		if c.present && (changed || !c.greeted) {
			c.greeted = true
			s.emit(Send{c.conn, now})
		}
	}
}
