package coordinator

import (
	"math/bits"
	"time"

	"ipoibd/qprecovery/reset"
)

// member is the shell of this process's client.
type member struct {
	client *reset.Client
	inbox  []reset.ClientEvent // not yet stepped
	link   reset.Conn          // to the host; 0: none
	wire   *conn               // of link; nil where the host is this process

	open    bool // the user may have the device open: it is told of resets
	up      bool // registered
	pending reset.ID
	last    reset.Ended
	members []reset.Member
	who     Host   // hosts
	err     error  // why the last dial failed
	failed  uint64 // dials since it was up
}

func (m *member) take(ev reset.ClientEvent) { m.inbox = append(m.inbox, ev) }

// hear takes a message of the host.
func (m *member) hear(msg reset.Message) {
	if roster, ok := msg.(reset.Roster); ok {
		m.up, m.err, m.failed, m.members, m.who.Name = true, nil, 0, roster.Members, roster.Host
	}
	m.take(reset.Heard{Msg: msg})
}

// unlink forgets the connection to the host.
func (m *member) unlink() { m.link, m.wire, m.up, m.who = 0, nil, false, Host{} }

// lost takes the end of a connection.
func (m *member) lost() {
	m.unlink()
	m.take(reset.Disconnected{})
}

func (m *member) status() Status {
	s := Status{Up: m.up, Host: m.who, Reset: m.pending, Last: m.last, Members: m.members, Err: m.err}
	if m.pending != 0 {
		s.Phase = reset.PhasePending
	}
	return s
}

// stepMember steps the client by one event; false: there is none.
func (o *owner) stepMember() bool {
	m := &o.member
	if len(m.inbox) == 0 {
		return false
	}
	ev := m.inbox[0]
	m.inbox = m.inbox[1:]
	for _, a := range m.client.Step(o.now, ev, nil) {
		o.actAsMember(a)
	}
	return true
}

func (o *owner) actAsMember(a reset.ClientAction) {
	switch a := a.(type) {
	case reset.Dial:
		o.dial()
	case reset.HangUp:
		o.hangUp()
	case reset.Say:
		o.say(a.Msg)
	case reset.Open:
		o.mayOpen()
	case reset.Release:
		o.pending(a.Reset)
	case reset.Restart:
		o.ended(a.Ended)
	case reset.HostSilent:
		o.silent(a.Since)
	case reset.HostAnswers:
		o.answers()
	}
}

// say sends to the host, which may be in this process.
func (o *owner) say(msg reset.Message) {
	m := &o.member
	switch {
	case m.wire != nil:
		if err := m.wire.send(msg); err != nil {
			o.lostHost(err)
		}
	case o.host != nil:
		o.host.hear(m.link, msg)
	}
}

// lostHost takes the end of the connection to another process.
func (o *owner) lostHost(err error) {
	o.unreachable(err)
	o.member.wire.abort()
	o.member.lost()
}

// hangUp ends the connection; a host in this process hears of it at once.
func (o *owner) hangUp() {
	m := &o.member
	if m.wire != nil {
		m.wire.finish()
	} else if o.host != nil {
		o.host.lose(m.link)
	}
	m.unlink()
}

// mayOpen ends Join.
func (o *owner) mayOpen() {
	if !o.member.open {
		o.member.open = true
		close(o.joined)
	}
}

// pending tells the user to let go. Before Join has ended there is nothing to
// let go of.
func (o *owner) pending(id reset.ID) {
	m := &o.member
	m.pending = id
	if !m.open {
		m.take(reset.Released{Reset: id})
		return
	}
	o.log.Info("reset pending", "reset", id)
	o.queued = append(o.queued, Pending{ID: id})
}

// ended tells the user to start again; to one that waits in Join it is the leave
// to open the device.
func (o *owner) ended(e reset.Ended) {
	m := &o.member
	m.pending, m.last = 0, e
	if m.open {
		o.queued = append(o.queued, Ended{e})
	}
	o.mayOpen()
}

// silent tells of a host that owes an answer; who waits in Join has been told that
// there is none yet. One that hangs up between its silences is logged as the tries
// double, see unreachable.
func (o *owner) silent(since time.Time) {
	m := &o.member
	m.who.Since = since
	if bits.OnesCount64(m.failed+1) == 1 {
		o.log.Warn("the host of the device does not answer", "host", m.who.String(), "since", since)
	}
	if m.open {
		o.queued = append(o.queued, Silent{m.who})
	}
}

func (o *owner) answers() {
	m := &o.member
	m.who.Since = time.Time{}
	o.log.Info("the host of the device answers again", "host", m.who.String())
	if m.open {
		o.queued = append(o.queued, Answers{m.who})
	}
}
