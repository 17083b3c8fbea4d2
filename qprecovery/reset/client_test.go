package reset

import (
	"reflect"
	"testing"
	"time"
)

// clientBench drives a client in virtual time.
type clientBench struct {
	*testing.T
	c   *Client
	now time.Time
}

func newClientBench(t *testing.T) *clientBench {
	return &clientBench{t, NewClient(worldStart, ClientConfig{ID: 7, Name: "ib0"}), worldStart}
}

func (b *clientBench) step(ev ClientEvent, want ...ClientAction) {
	b.Helper()
	if got := b.c.Step(b.now, ev, nil); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		b.Errorf("%+v\ngot  %+v\nwant %+v", ev, got, want)
	}
}

// up registers the client.
func (b *clientBench) up() *clientBench {
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7, Name: "ib0"}})
	b.step(Heard{Roster{Members: []Member{named(7)}}}, Open{})
	return b
}

func TestR11Client(t *testing.T) {
	b := newClientBench(t).up()
	b.step(WantReset{}, Say{Request{}})
	b.step(WantReset{}) // it is the same reset
	b.step(Heard{Pending{5}}, Release{5})
	b.step(WantReset{})
	b.step(Released{4}) // of an earlier one
	b.step(Released{5}, Say{Ready{5}})
	if b.c.Holds() {
		t.Error("holds the device after its release")
	}
	end := Ended{Reset: 5, Outcome: OutcomeDone}
	b.step(Heard{end}, Restart{end})
	b.step(Released{5}) // late
	b.step(WantReset{}, Say{Request{}})
}

// A newcomer to a pending reset opens nothing before that has ended.
func TestR13ClientJoinsPending(t *testing.T) {
	b := newClientBench(t)
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7, Name: "ib0"}})
	b.step(Heard{Pending{5}}, Release{5})
	b.step(Heard{Roster{}})
	b.step(Released{5}, Say{Ready{5}})
	end := Ended{Reset: 5, Outcome: OutcomeDone}
	b.step(Heard{end}, Restart{end})
}

// While nobody hosts the client keeps its place, and tells the next host of it.
func TestR16ClientAcrossHosts(t *testing.T) {
	b := newClientBench(t).up()
	b.step(Heard{Pending{5}}, Release{5})
	b.step(Disconnected{})
	b.step(Released{5})
	b.now = b.now.Add(retryMin)
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7, Name: "ib0", Told: 5, Roster: []Member{named(7)}}})
	end := Ended{Reset: 5, Outcome: OutcomeDone}
	b.step(Heard{end}, Restart{end})
	b.step(Disconnected{})
	b.step(WantReset{}) // said with the next Hello
	b.now = b.now.Add(retryMax)
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7, Name: "ib0", Holds: true, Wants: true, Last: end, Roster: []Member{named(7)}}})
}

// Dialing slows down to a rate that the settle time of a host is made for.
func TestR16ClientDialsAgain(t *testing.T) {
	b := newClientBench(t)
	var waits []time.Duration
	for range 8 {
		b.step(ClientTick{}, Dial{})
		b.step(Disconnected{})
		at, ok := b.c.NextDeadline()
		if !ok {
			t.Fatal("no deadline while the link is down")
		}
		waits = append(waits, at.Sub(b.now).Round(time.Millisecond)/time.Millisecond)
		b.now = at
	}
	if want := []time.Duration{20, 40, 80, 160, 320, 500, 500, 500}; !reflect.DeepEqual(waits, want) {
		t.Errorf("%d, want %d", waits, want)
	}
	if 4*retryMax > DefaultSettle {
		t.Error("the settle time is too short for four tries")
	}
}

// A host that breaks the protocol is left, and dialed again.
func TestClientHangsUp(t *testing.T) {
	for _, m := range []Message{Ended{Reset: 5}, Pending{}, Request{}} {
		b := newClientBench(t).up()
		b.step(Heard{m}, HangUp{})
		if _, ok := b.c.NextDeadline(); !ok {
			t.Errorf("%T: no dial is due", m)
		}
	}
	b := newClientBench(t).up()
	b.step(Heard{Pending{5}}, Release{5})
	b.step(Heard{Pending{6}}, HangUp{})
	b.step(Heard{Ended{Reset: 5}}) // from the connection that was left
}

func TestClientStops(t *testing.T) {
	b := newClientBench(t).up()
	b.step(Stop{}, Say{Leave{}}, HangUp{})
	b.step(WantReset{})
	if _, ok := b.c.NextDeadline(); ok || b.c.Holds() {
		t.Error("a client that left is not done")
	}
}
