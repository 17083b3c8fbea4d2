package coordinator

import (
	"context"
	"net"
	"os"
	"time"

	"ipoibd/qprecovery/reset"
)

// host is the shell of the server: this process hosts.
type host struct {
	o        *owner
	server   *reset.Server
	inbox    []reset.Event     // not yet stepped
	listener *net.UnixListener // nil: nobody shares the device
	peers    map[reset.Conn]*peer

	running reset.ID           // whose Config.Reset is under way; 0: none
	cancel  context.CancelFunc // ends it
}

// becomeHost begins to host at l, which is nil where nobody shares the device.
func (o *owner) becomeHost(l *net.UnixListener) {
	o.host = &host{o: o, server: o.newServer(l != nil), listener: l, peers: map[reset.Conn]*peer{}}
	if l != nil {
		o.log.Info("hosting the resets of the device", "path", o.conf.Path)
		o.spawn(func() { o.listen(l) })
	}
}

// newServer returns a server that lets the clients of an earlier host come back,
// if there may be any; otherwise its settle time is over when it begins.
func (o *owner) newServer(shared bool) *reset.Server {
	conf := reset.Config{Seed: random(), Grace: o.conf.Grace, Limit: o.conf.Limit, Settle: o.conf.Settle}
	if shared {
		return reset.NewServer(o.now, conf)
	}
	conf.Settle = time.Nanosecond
	return reset.NewServer(o.now.Add(-conf.Settle), conf)
}

// addSelf connects this process's own client.
func (h *host) addSelf() reset.Conn {
	id := h.o.nextConn()
	h.peers[id] = &peer{who: reset.Peer{PID: int32(os.Getpid()), Local: true}}
	return id
}

func (h *host) take(ev reset.Event) { h.inbox = append(h.inbox, ev) }

// hear takes a message, unless its connection is gone. Each is stepped before
// other news is taken, so none waits here when its connection goes.
func (h *host) hear(id reset.Conn, msg reset.Message) {
	if p := h.peers[id]; p != nil && !p.lost {
		h.take(reset.Received{Conn: id, Peer: p.who, Msg: msg})
	}
}

// stepHost steps the server by one event; false: there is none, or no server.
func (o *owner) stepHost() bool {
	h := o.host
	if h == nil || len(h.inbox) == 0 {
		return false
	}
	ev := h.inbox[0]
	h.inbox = h.inbox[1:]
	hello, registers := h.introduce(ev)
	for _, a := range h.server.Step(o.now, ev, nil) {
		h.act(a)
	}
	if registers {
		h.supersede(hello)
	}
	return true
}

func (h *host) act(a reset.Action) {
	switch a := a.(type) {
	case reset.Send:
		h.send(a)
	case reset.Drop:
		h.drop(a)
	case reset.Reset:
		h.reset(a)
	case reset.Concluded:
		h.concluded(a.Ended)
	}
}

// send sends to a client, which may be this process's own. One that cannot take
// it is dropped.
func (h *host) send(a reset.Send) {
	p := h.peers[a.Conn]
	switch {
	case a.Conn == h.o.member.link:
		h.o.member.hear(a.Msg)
	case p == nil || p.lost:
		h.take(reset.Lost{Conn: a.Conn})
	default:
		if err := p.conn.send(a.Msg); err != nil {
			h.o.refuse(p, err)
			h.lose(a.Conn)
		}
	}
}

func (h *host) concluded(e reset.Ended) {
	if h.running == e.Reset && h.cancel != nil {
		h.cancel() // its time is over
	}
	if e.Outcome == reset.OutcomeDone {
		h.o.log.Info("device reset", "reset", e.Reset)
		return
	}
	h.o.log.Warn("device not reset", "reset", e.Reset, "reason", e.Outcome, "holders", names(e.Holders))
}

// fill adds what a host knows to a status.
func (h *host) fill(s *Status) {
	s.Hosting, s.Host.PID = true, int32(os.Getpid())
	s.Phase, s.Reset = h.server.Phase()
}

// close ends the host: no newcomer finds it, then everybody is let go.
func (h *host) close() {
	if h.listener != nil {
		h.o.meeting.leave(h.listener)
	}
	if h.cancel != nil {
		h.cancel()
	}
	for id, p := range h.peers {
		if p.conn != nil {
			p.conn.finish()
		}
		h.forget(id)
	}
}
