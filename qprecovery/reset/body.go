package reset

import (
	"encoding/binary"
)

// Bits of a Hello's flags.
const (
	flagHolds = 1 << iota
	flagWants
)

// writer appends the fields of a message; the first mistake stays in err.
type writer struct {
	b   []byte
	err error
}

func (w *writer) message(m Message) {
	switch m := m.(type) {
	case Hello:
		w.hello(m)
	case Ready:
		w.u64(uint64(m.Reset))
	case Roster:
		w.name(m.Host)
		w.members(m.Members, MaxMembers)
	case Pending:
		w.u64(uint64(m.Reset))
	case Ended:
		w.ended(m)
	case Request, Leave: // no body
	}
}

// hello: [id 8][flags 1][told 8][last 8][last outcome 1][name][members].
func (w *writer) hello(m Hello) {
	var flags byte
	if m.Holds {
		flags |= flagHolds
	}
	if m.Wants {
		flags |= flagWants
	}
	w.u64(uint64(m.ID))
	w.b = append(w.b, flags)
	w.u64(uint64(m.Told))
	w.u64(uint64(m.Last.Reset))
	w.b = append(w.b, byte(m.Last.Outcome))
	w.name(m.Name)
	w.members(m.Roster, MaxMembers)
}

// ended: [reset 8][outcome 1][members].
func (w *writer) ended(m Ended) {
	w.u64(uint64(m.Reset))
	w.b = append(w.b, byte(m.Outcome))
	w.members(m.Holders, MaxHolders)
}

func (w *writer) u64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

// name: [length 1][bytes].
func (w *writer) name(s string) {
	if len(s) > MaxName {
		w.err = ErrTooLong
		return
	}
	if CleanName(s) != s {
		w.err = ErrFormat
		return
	}
	w.b = append(append(w.b, byte(len(s))), s...)
}

// members: [count 1], each [id 8][pid 4][name].
func (w *writer) members(ms []Member, limit int) {
	if len(ms) > limit {
		w.err = ErrTooLong
		return
	}
	w.b = append(w.b, byte(len(ms)))
	for _, m := range ms {
		w.u64(uint64(m.ID))
		w.b = binary.BigEndian.AppendUint32(w.b, uint32(m.PID))
		w.name(m.Name)
	}
}

// reader takes fields from the front of b. Once bad it gives zeros.
type reader struct {
	b   []byte
	bad bool
}

// message reads a message of kind k, or returns nil for an unknown kind.
func (r *reader) message(k kind) Message {
	switch k {
	case kindHello:
		return r.hello()
	case kindRequest:
		return Request{}
	case kindReady:
		return Ready{Reset: ID(r.u64())}
	case kindLeave:
		return Leave{}
	case kindRoster:
		return Roster{Host: r.name(), Members: r.members(MaxMembers)}
	case kindPending:
		return Pending{Reset: ID(r.u64())}
	case kindEnded:
		return Ended{Reset: ID(r.u64()), Outcome: r.outcome(), Holders: r.members(MaxHolders)}
	}
	return nil
}

func (r *reader) hello() Message {
	m := Hello{ID: ClientID(r.u64())}
	flags := r.u8()
	m.Holds, m.Wants = flags&flagHolds != 0, flags&flagWants != 0
	m.Told = ID(r.u64())
	m.Last = Ended{Reset: ID(r.u64()), Outcome: r.outcome()}
	m.Name = r.name()
	m.Roster = r.members(MaxMembers)
	r.bad = r.bad || m.ID == 0 || flags&^(flagHolds|flagWants) != 0
	return m
}

// take returns the next n bytes, or n zeros.
func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.bad = true
		return make([]byte, n)
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *reader) u8() byte    { return r.take(1)[0] }
func (r *reader) u64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

func (r *reader) outcome() Outcome {
	o := Outcome(r.u8())
	r.bad = r.bad || o >= numOutcome
	return o
}

func (r *reader) name() string {
	s := string(r.take(int(r.u8())))
	r.bad = r.bad || len(s) > MaxName || CleanName(s) != s
	return s
}

func (r *reader) members(limit int) []Member {
	n := int(r.u8())
	if n > limit {
		r.bad = true
	}
	var out []Member
	for range n {
		if r.bad {
			return nil
		}
		m := Member{ID: ClientID(r.u64()), PID: int32(binary.BigEndian.Uint32(r.take(4))), Name: r.name()}
		r.bad = r.bad || m.ID == 0
		out = append(out, m)
	}
	return out
}
