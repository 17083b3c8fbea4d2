package coordinator

import (
	"fmt"

	"ipoibd/qprecovery/reset"
)

// peer is a connection that the host has, or had: it is kept after its end for
// as long as the end of its process would tell the server anything.
type peer struct {
	who     reset.Peer
	conn    *conn          // nil for this process's own client
	process *process       // nil: the connection stands for it
	client  reset.ClientID // 0 until it said Hello
	name    string
	lost    bool // the connection is gone
}

func (p *peer) String() string { return fmt.Sprintf("%s[%d]", p.name, p.who.PID) }

// broken takes the end of a connection that its reader saw.
func (h *host) broken(id reset.Conn, err error) {
	if p := h.peers[id]; p != nil && !p.lost && misbehaved(err) {
		h.o.refuse(p, err)
	}
	h.lose(id)
}

// died takes the end of a process.
func (h *host) died(id reset.Conn) {
	h.lose(id)
	h.take(reset.Died{Conn: id})
	h.forget(id)
}

// lose takes the end of a connection, by either side.
func (h *host) lose(id reset.Conn) {
	p := h.peers[id]
	if p == nil || p.lost {
		return
	}
	p.lost = true
	h.take(reset.Lost{Conn: id})
	switch {
	case p.who.Local:
		h.o.member.lost()
		h.forget(id)
		return
	case p.process == nil:
		h.take(reset.Died{Conn: id})
		h.forget(id)
	case p.client == 0:
		h.forget(id)
	}
	p.conn.abort()
}

// forget lets go of a peer of which the server has no entry.
func (h *host) forget(id reset.Conn) {
	if p := h.peers[id]; p != nil && p.process != nil {
		p.process.close()
	}
	delete(h.peers, id)
}

// introduce notes who a peer says it is.
func (h *host) introduce(ev reset.Event) (reset.Conn, bool) {
	r, ok := ev.(reset.Received)
	if !ok {
		return 0, false
	}
	hello, ok := r.Msg.(reset.Hello)
	if p := h.peers[r.Conn]; ok && p != nil && p.client == 0 {
		p.client, p.name = hello.ID, hello.Name
	}
	return r.Conn, ok
}

// supersede forgets the lost connections of a client that has come back on id:
// the server knows it by the new one only. That one's process is the same, or
// the server would have dropped it.
func (h *host) supersede(id reset.Conn) {
	p := h.peers[id]
	if p == nil || p.lost {
		return
	}
	for old, q := range h.peers {
		if q.lost && q.client == p.client {
			h.forget(old)
		}
	}
}

// drop closes a connection on the server's word.
func (h *host) drop(a reset.Drop) {
	p := h.peers[a.Conn]
	if p == nil {
		return
	}
	h.lose(a.Conn)
	switch a.Reason {
	case reset.DropLeft:
		h.forget(a.Conn)
	case reset.DropFull, reset.DropStolen: // the server has no entry of it
		h.forget(a.Conn)
		h.o.refuse(p, a.Reason)
	case reset.DropProtocol:
		h.o.refuse(p, a.Reason)
	case reset.DropReplaced: // supersede follows
	}
}
