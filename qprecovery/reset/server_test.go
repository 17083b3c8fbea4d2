package reset

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// bench drives a server in virtual time; client n has connection n and process n.
type bench struct {
	*testing.T
	s   *Server
	now time.Time
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, s: NewServer(worldStart, Config{Seed: 100}), now: worldStart}
	b.advance(DefaultSettle)
	return b
}

func (b *bench) step(ev Event) []Action { return b.s.Step(b.now, ev, nil) }

func (b *bench) advance(d time.Duration) []Action {
	b.now = b.now.Add(d)
	return b.step(Tick{})
}

func (b *bench) from(n int, m Message) []Action {
	return b.step(Received{Conn(n), Peer{PID: int32(n), Local: n == 1}, m})
}

// join registers client n as a shell that opens the device.
func (b *bench) join(n int) []Action {
	return b.from(n, Hello{ID: ClientID(n), Name: fmt.Sprintf("ib%d", n)})
}

// want compares actions, rosters aside.
func (b *bench) want(got []Action, want ...Action) {
	b.Helper()
	got = slices.DeleteFunc(got, func(a Action) bool {
		s, ok := a.(Send)
		_, roster := s.Msg.(Roster)
		return ok && roster
	})
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		b.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func named(n int) Member { return Member{ID: ClientID(n), PID: int32(n), Name: fmt.Sprintf("ib%d", n)} }

func done(n int) Action { return Send{Conn(n), Ended{Reset: 101, Outcome: OutcomeDone}} }

func TestR11RequestPendingReadyEnded(t *testing.T) {
	b := newBench(t)
	b.want(b.join(1))
	b.want(b.join(2))
	b.want(b.from(2, Request{}), Send{1, Pending{101}}, Send{2, Pending{101}})
	b.want(b.from(1, Ready{101}))
	b.want(b.from(2, Ready{101}), Reset{Reset: 101})
	b.want(b.step(ResetDone{Reset: 101}), Concluded{Ended{Reset: 101, Outcome: OutcomeDone}}, done(1), done(2))
	if p, id := b.s.Phase(); p != PhaseIdle || id != 0 {
		t.Error(p, id)
	}
	if _, armed := b.s.NextDeadline(); armed {
		t.Error("a deadline in idle")
	}
}

// A client that registers while a reset is pending is told at once; holding
// nothing, it is not waited for, and holding something, no longer than the others.
func TestR13LateClient(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.from(1, Request{})
	b.want(b.join(2), Send{2, Pending{101}})
	b.advance(30 * time.Second)
	b.want(b.from(3, Hello{ID: 3, Name: "ib3", Holds: true}), Send{3, Pending{101}})
	b.want(b.from(1, Ready{101}))
	got := b.advance(30 * time.Second)
	held := Ended{Reset: 101, Outcome: OutcomeHeld, Holders: []Member{named(3)}}
	b.want(got, Concluded{held}, Send{1, held}, Send{2, held}, Send{3, held})
}

func TestR13LateClientWhileResetting(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.from(1, Request{})
	b.want(b.from(1, Ready{101}), Reset{Reset: 101})
	b.want(b.join(2), Send{2, Pending{101}})
	b.want(b.step(ResetDone{Reset: 101}), Concluded{Ended{Reset: 101, Outcome: OutcomeDone}}, done(1), done(2))
}

// A client of the host's own process that does not answer becomes a zombie.
func TestR14ResetWithoutSlowClient(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.join(2)
	b.from(2, Request{})
	b.from(2, Ready{101})
	b.want(b.advance(DefaultGrace - 1))
	b.want(b.advance(1), Reset{Reset: 101, Without: []Member{named(1)}})
	b.want(b.step(ResetDone{Reset: 101}), Concluded{Ended{Reset: 101, Outcome: OutcomeDone}}, done(1), done(2))
}

func TestR14GraceIsConfigurable(t *testing.T) {
	s := NewServer(worldStart, Config{Grace: time.Second, Settle: time.Millisecond})
	s.Step(worldStart, Received{1, Peer{Local: true}, Hello{ID: 1, Wants: true}}, nil)
	s.Step(worldStart.Add(time.Millisecond), Tick{}, nil)
	if at, _ := s.NextDeadline(); !at.Equal(worldStart.Add(time.Second)) {
		t.Error(at)
	}
}

func TestR15SeveralRequestsAreOne(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.join(2)
	b.from(2, Request{})
	b.want(b.from(1, Request{}))
	b.from(1, Ready{101})
	b.want(b.from(2, Ready{101}), Reset{Reset: 101})
	b.want(b.from(2, Request{}))
	b.step(ResetDone{Reset: 101})
	b.want(b.advance(time.Hour))
}

// A dead process is waited for no longer; a broken connection alone is no death.
func TestR15DeadClient(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.join(2)
	b.from(1, Request{})
	b.from(1, Ready{101})
	b.want(b.step(Lost{2}))
	b.want(b.step(Died{2}), Reset{Reset: 101})
}

// Another process that keeps the device is named, and the device is let alone.
func TestR16HeldByAnotherProcess(t *testing.T) {
	for _, absent := range []bool{false, true} {
		b := newBench(t)
		b.join(1)
		b.join(2)
		b.from(1, Request{})
		b.from(1, Ready{101})
		held := Ended{Reset: 101, Outcome: OutcomeHeld, Holders: []Member{named(2)}}
		want := []Action{Concluded{held}, Send{1, held}}
		if absent {
			b.step(Lost{2})
		} else {
			want = append(want, Send{2, held})
		}
		b.want(b.advance(DefaultGrace), want...)
	}
}

// A client that comes back within the grace goes on where it was.
func TestR16ComesBack(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.join(2)
	b.from(1, Request{})
	b.from(1, Ready{101})
	b.step(Lost{2})
	back := Received{7, Peer{PID: 2}, Hello{ID: 2, Name: "ib2", Told: 101}}
	b.want(b.step(back), Reset{Reset: 101})
	b.step(Lost{7})
	b.want(b.step(ResetDone{Reset: 101}), Concluded{Ended{Reset: 101, Outcome: OutcomeDone}}, done(1))
	back.Conn = 8
	b.want(b.step(back), done(8))
}

// A new host waits for whom the roster names, takes up the reset that the old
// one left, and tells its end under the number that the client knows.
func TestR16Takeover(t *testing.T) {
	b := newBench(t)
	hello := Hello{ID: 1, Name: "ib1", Told: 55, Roster: []Member{named(1), named(2)}}
	b.want(b.from(1, hello))
	if p, _ := b.s.Phase(); p != PhasePending {
		t.Fatal(p)
	}
	b.want(b.from(2, Hello{ID: 2, Name: "ib2", Told: 55}), Reset{Reset: 101})
	end := Ended{Reset: 55, Outcome: OutcomeDone}
	b.want(b.step(ResetDone{Reset: 101}), Concluded{Ended{Reset: 101, Outcome: OutcomeDone}}, Send{1, end}, Send{2, end})
}

// The old host's reset had ended: who did not hear of it does now, and nothing is
// reset again.
func TestR16TakeoverAfterTheEnd(t *testing.T) {
	b := newBench(t)
	b.from(1, Hello{ID: 1, Name: "ib1", Told: 55, Roster: []Member{named(2)}})
	end := Ended{Reset: 55, Outcome: OutcomeFailed}
	b.want(b.from(2, Hello{ID: 2, Name: "ib2", Holds: true, Last: end}), Send{1, end})
	if p, _ := b.s.Phase(); p != PhaseIdle {
		t.Error(p)
	}
}

// Before the settle time is over a new host resets nothing.
func TestR16Settle(t *testing.T) {
	b := &bench{T: t, s: NewServer(worldStart, Config{Seed: 100}), now: worldStart}
	b.want(b.from(1, Hello{ID: 1, Name: "ib1", Told: 55}))
	b.want(b.advance(DefaultSettle - 1))
	b.want(b.advance(1), Reset{Reset: 101})
}

func TestResetTakesTooLong(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.from(1, Request{})
	b.from(1, Ready{101})
	end := Ended{Reset: 101, Outcome: OutcomeTimeout}
	b.want(b.advance(DefaultLimit), Concluded{end}, Send{1, end})
	b.want(b.step(ResetDone{Reset: 101}))
}

func TestDrops(t *testing.T) {
	b := newBench(t)
	b.want(b.from(1, Ready{1}), Drop{1, DropProtocol})
	b.join(1)
	b.join(2)
	b.want(b.join(2), Drop{2, DropProtocol})
	b.want(b.from(2, Pending{1}), Drop{2, DropProtocol})
	b.want(b.step(Received{9, Peer{PID: 99}, Hello{ID: 2}}), Drop{9, DropStolen})
	b.want(b.step(Received{10, Peer{PID: 1, Local: true}, Hello{ID: 1}}), Drop{1, DropReplaced})
	b.want(b.step(Received{10, Peer{PID: 1}, Leave{}}), Drop{10, DropLeft})
	for n := 20; len(b.s.clients) < MaxMembers; n++ {
		b.join(n)
	}
	b.want(b.join(999), Drop{999, DropFull})
}

// A client that registers twice on a connection has lost it: it is not counted as
// there, and can come back on another.
func TestR16HelloTwice(t *testing.T) {
	b := newBench(t)
	b.join(1)
	b.join(2)
	b.want(b.join(2), Drop{2, DropProtocol})
	if c := b.s.clients.find(2); c == nil || c.present {
		t.Errorf("client 2: %+v", c)
	}
	b.from(1, Request{})
	b.want(b.step(Received{9, Peer{PID: 2}, Hello{ID: 2, Name: "ib2", Holds: true}}), Send{9, Pending{101}})
}

// Who is known by hearsay only is forgotten after a grace period.
func TestR14InheritedIsForgotten(t *testing.T) {
	b := newBench(t)
	b.from(1, Hello{ID: 1, Name: "ib1", Roster: []Member{named(2)}})
	b.advance(DefaultGrace)
	b.from(1, Request{})
	b.want(b.from(1, Ready{101}), Reset{Reset: 101})
}

func TestNames(t *testing.T) {
	for _, s := range []string{OutcomeHeld.String(), PhaseResetting.String(), DropLeft.String(), (numOutcome - 1).String()} {
		if s == "" || s == "unknown" {
			t.Error(s)
		}
	}
	for _, s := range []string{numOutcome.String(), numPhase.String(), numDropReason.String()} {
		if s != "unknown" {
			t.Error(s)
		}
	}
}
