package reset

import "slices"

// client is what the server knows of a client.
type client struct {
	id        ClientID
	name      string
	conn      Conn  // the present connection, or the last one
	pid       int32 // of the process, by the kernel; of an inherited one by hearsay
	local     bool  // of this process
	present   bool  // connected
	inherited bool  // known from the roster of an earlier host; never seen here
	greeted   bool  // the roster was sent to it
	ready     bool  // holds nothing of the device, and will not before it is told
	told      ID    // the reset that it knows to be pending; 0: none
	last      Ended // the last reset that it was told the end of
}

// clients are in the order of their first registration.
type clients []*client

func (cs *clients) add(id ClientID) *client {
	c := &client{id: id}
	*cs = append(*cs, c)
	return c
}

func (cs *clients) remove(c *client) {
	*cs = slices.DeleteFunc(*cs, func(x *client) bool { return x == c })
}

func (cs clients) find(id ClientID) *client {
	return cs.first(func(c *client) bool { return c.id == id })
}

// on finds the client whose connection this is or last was.
func (cs clients) on(conn Conn) *client {
	return cs.first(func(c *client) bool { return c.conn == conn && !c.inherited })
}

func (cs clients) first(is func(*client) bool) *client {
	if i := slices.IndexFunc(cs, is); i >= 0 {
		return cs[i]
	}
	return nil
}

// unready are those who hold the device, as far as is known.
func (cs clients) unready() (out []*client) {
	for _, c := range cs {
		if !c.ready {
			out = append(out, c)
		}
	}
	return out
}

// told reports whether anybody waits for the end of a reset.
func (cs clients) told() bool {
	return slices.ContainsFunc(cs, func(c *client) bool { return c.told != 0 })
}

func (cs clients) inherited() bool {
	return slices.ContainsFunc(cs, func(c *client) bool { return c.inherited })
}

// ending finds how a reset ended, if any client was told.
func (cs clients) ending(id ID) (Ended, bool) {
	if c := cs.first(func(c *client) bool { return id != 0 && c.last.Reset == id }); c != nil {
		return c.last, true
	}
	return Ended{}, false
}

// host names this process, by its first client.
func (cs clients) host() string {
	if c := cs.first(func(c *client) bool { return c.local }); c != nil {
		return c.name
	}
	return ""
}

// foreignOf names those outside of this process.
func foreignOf(cs []*client) []Member {
	return membersOf(slices.DeleteFunc(slices.Clone(cs), func(c *client) bool { return c.local }))
}

func membersOf(cs []*client) (out []Member) {
	for _, c := range cs {
		out = append(out, Member{ID: c.id, PID: c.pid, Name: c.name})
	}
	return out
}
