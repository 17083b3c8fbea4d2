package reset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// budget bounds the mishaps of an exploration.
type budget struct {
	requests, crashes, restarts, halves, breaks, leaves, timers int8
}

// proc is a process with one client.
type proc struct {
	alive   bool
	left    bool
	client  *Client
	id      ClientID
	conn    Conn   // 0: none
	watched []Conn // all of its connections to this host, which watches the process
	held    bool   // has the device open, which only its own shell knows
	release ID     // asked to release this; 0: no
	up      []byte // to the server, not yet read
	down    []byte
	part    []byte // of the server's reader: a message half read
	told    int    // Release minus Restart
	seen    []ID   // resets it was told of
}

// world is a host with its processes, the streams between, and one device.
type world struct {
	procs   []proc
	server  *Server
	host    int    // the process of server; -1: none
	deadRep []Conn // connections whose process died, not reported yet
	lostRep []Conn // connections that broke, not reported yet
	reset   ID     // the reset of the device under way
	grace   bool   // the grace of the present pending is over
	lastID  ClientID
	last    Conn
	seeds   uint64
	now     time.Time
	have    budget
}

var worldStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(n int, have budget) *world {
	w := &world{host: -1, now: worldStart, have: have}
	for range n {
		w.procs = append(w.procs, w.newProc())
	}
	return w
}

func (w *world) newProc() proc {
	w.lastID++
	c := NewClient(w.now, ClientConfig{ID: w.lastID})
	return proc{alive: true, id: w.lastID, client: c}
}

func (w *world) clone() *world {
	c := *w
	c.procs = slices.Clone(w.procs)
	for i := range c.procs {
		p := &c.procs[i]
		client := *p.client
		p.client = &client
		p.up, p.down, p.part = bytes.Clone(p.up), bytes.Clone(p.down), bytes.Clone(p.part)
		p.seen, p.watched = slices.Clone(p.seen), slices.Clone(p.watched)
	}
	c.deadRep, c.lostRep = slices.Clone(w.deadRep), slices.Clone(w.lostRep)
	if w.server != nil {
		s := *w.server
		s.clients = slices.Clone(s.clients)
		for i, e := range s.clients {
			entry := *e
			s.clients[i] = &entry
		}
		c.server = &s
	}
	return &c
}

// key is the state without what has no bearing on the future: absolute times, and
// the numbers of connections, which are renamed by order of appearance. Two
// deadlines are never in force in an order that depends on the past: settle
// comes before all others, and the others exclude each other. Of a client's vigil
// nothing depends.
func (w *world) key() string {
	k := keyer{b: make([]byte, 0, 1024)}
	h := w.have
	k.num(int(h.requests), int(h.crashes), int(h.restarts), int(h.halves), int(h.breaks), int(h.leaves), int(h.timers))
	k.num(w.host, int(w.reset), int(w.lastID), int(w.seeds))
	k.flag(w.grace)
	for i := range w.procs {
		k.proc(&w.procs[i])
	}
	k.conns(w.lostRep)
	k.conns(w.deadRep)
	if w.server != nil {
		k.server(w.server)
	}
	return string(k.b)
}

// keyer writes states; no value is ambiguous, since each has its fixed place or
// its length in front.
type keyer struct {
	b     []byte
	known []Conn
}

func (k *keyer) num(vs ...int) {
	for _, v := range vs {
		k.b = binary.AppendVarint(k.b, int64(v))
	}
}

func (k *keyer) flag(vs ...bool) {
	for _, v := range vs {
		k.b = strconv.AppendBool(k.b, v)[:len(k.b)+1]
	}
}

func (k *keyer) conns(cs []Conn) {
	k.num(len(cs))
	for _, c := range cs {
		if c != 0 && !slices.Contains(k.known, c) {
			k.known = append(k.known, c)
		}
		k.num(slices.Index(k.known, c))
	}
}

func (k *keyer) bytes(b []byte) {
	k.num(len(b))
	k.b = append(k.b, b...)
}

func (k *keyer) members(ms []Member) {
	k.num(len(ms))
	for _, m := range ms {
		k.num(int(m.ID), int(m.PID))
	}
}

func (k *keyer) proc(p *proc) {
	c := p.client
	k.flag(p.alive, p.left, p.held, c.wants)
	k.num(int(p.id), int(p.release), p.told, int(c.link), int(c.work), int(c.told), int(c.last.Reset), int(c.last.Outcome))
	k.conns([]Conn{p.conn})
	k.conns(p.watched)
	k.bytes(p.up)
	k.bytes(p.down)
	k.bytes(p.part)
	k.members(c.roster)
}

func (k *keyer) server(s *Server) {
	k.flag(s.deadline.IsZero(), s.settleAt.IsZero(), s.forgetAt.IsZero())
	k.num(int(s.phase), int(s.resetID), len(s.clients))
	k.members(s.roster.Members)
	for _, c := range s.clients {
		k.flag(c.local, c.present, c.inherited, c.greeted, c.ready)
		k.num(int(c.id), int(c.pid), int(c.told), int(c.last.Reset), int(c.last.Outcome))
		k.conns([]Conn{c.conn})
	}
}

// atRest: nothing is left to be done.
func (w *world) atRest() bool {
	for i := range w.procs {
		p := &w.procs[i]
		if !p.alive || p.left {
			continue
		}
		if p.client.link != linkUp || p.client.work != workRunning || p.client.wants || p.told != 0 || !p.held {
			return false
		}
		if len(p.up)+len(p.down)+len(p.part) > 0 {
			return false
		}
	}
	return w.reset == 0 && (w.server == nil || w.server.phase == PhaseIdle)
}

// check on a reset: who is neither ready nor out of grace holds nothing.
func (w *world) checkReset(r Reset) error {
	for i := range w.procs {
		p := &w.procs[i]
		zombie := slices.ContainsFunc(r.Without, func(m Member) bool { return m.ID == p.id })
		switch {
		case !p.alive || !p.held:
		case i != w.host:
			return fmt.Errorf("reset %d while process %d holds the device", r.Reset, i)
		case !w.grace || !zombie:
			return fmt.Errorf("reset %d while the host's own client holds the device", r.Reset)
		}
	}
	for _, e := range w.server.clients {
		if e.present && e.told == 0 {
			return fmt.Errorf("reset %d without telling client %d", r.Reset, e.id)
		}
	}
	return nil
}

func (w *world) serve(ev Event) error {
	if w.server == nil {
		return nil
	}
	was := w.server.phase
	for _, a := range w.server.Step(w.now, ev, nil) {
		if err := w.act(a); err != nil {
			return err
		}
	}
	if was == PhasePending && w.server.phase != PhaseResetting {
		w.grace = false
	}
	return nil
}

// act is the shell of the server.
func (w *world) act(a Action) (err error) {
	switch a := a.(type) {
	case Send:
		if p := w.on(a.Conn); p != nil {
			p.down, err = Append(p.down, a.Msg)
		}
	case Drop:
		if p := w.on(a.Conn); p != nil {
			return w.cut(p, false)
		}
	case Reset:
		w.reset = a.Reset
		return w.checkReset(a)
	case Concluded:
		w.reset = 0
	}
	return err
}

func (w *world) on(c Conn) *proc {
	if i := slices.IndexFunc(w.procs, func(p proc) bool { return p.conn == c && c != 0 }); i >= 0 {
		return &w.procs[i]
	}
	return nil
}

// cut breaks a connection; the client learns at once, the server by a report.
func (w *world) cut(p *proc, report bool) error {
	if report && w.server != nil && p.conn != 0 {
		w.lostRep = append(w.lostRep, p.conn)
	}
	p.conn, p.up, p.down, p.part = 0, nil, nil, nil
	return w.tell(p, Disconnected{})
}

// tell is the shell of a client.
func (w *world) tell(p *proc, ev ClientEvent) error {
	for _, a := range p.client.Step(w.now, ev, nil) {
		if err := w.clientAct(p, a); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) clientAct(p *proc, a ClientAction) (err error) {
	switch a := a.(type) {
	case Dial:
		return w.dial(p)
	case Say:
		p.up, err = Append(p.up, a.Msg)
	case HangUp:
		if !p.left {
			return fmt.Errorf("client %d hung up on its host", p.id)
		}
	case Open:
		p.held = true
	case Release:
		p.release, p.told = a.Reset, p.told+1
		if p.told != 1 || slices.Contains(p.seen, a.Reset) {
			return fmt.Errorf("client %d told twice that reset %d is pending", p.id, a.Reset)
		}
		p.seen = append(p.seen, a.Reset)
	case Restart:
		p.told, p.held, p.release = p.told-1, true, 0
		if p.told != 0 {
			return fmt.Errorf("client %d told twice that reset %d ended", p.id, a.Reset)
		}
	}
	return err
}

// dial connects to the host, or becomes it.
func (w *world) dial(p *proc) error {
	if w.server == nil {
		w.host = slices.IndexFunc(w.procs, func(q proc) bool { return q.id == p.id })
		w.seeds++
		w.server = NewServer(w.now, Config{Seed: 100 * w.seeds})
	}
	w.last++
	p.conn, p.watched = w.last, append(p.watched, w.last)
	return w.tell(p, Connected{})
}
