package power

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(0, 0)

// line is one event at a time, and what the machine is to do about it.
type line struct {
	at   time.Duration
	ev   event
	want string
}

// logind grants ten seconds: eight are the hook's, after nine the lock goes.
var granted = found{10 * time.Second}

var stories = []struct {
	name  string
	lines []line
}{
	{"R26/sleep and wake-up: let go before, lock before taking up", []line{
		{0, granted, "take lock"},
		{0, told{awake}, ""},
		{100 * time.Second, told{sleeping}, "suspend"},
		{101 * time.Second, returned{}, "release lock"},
		{110 * time.Second, tick{}, ""},
		{200 * time.Second, told{awake}, "take lock, resume"},
		{201 * time.Second, returned{}, ""},
	}},
	{"R26/a hook that hangs holds the sleep up no longer than allowed", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{8999 * time.Millisecond, tick{}, ""},
		{9 * time.Second, tick{}, "release lock"},
		{200 * time.Second, told{awake}, "take lock"},
		{201 * time.Second, returned{}, "resume"},
		{202 * time.Second, returned{}, ""},
	}},
	{"R26/the sleep is called off while Suspend runs", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, told{awake}, ""},
		{2 * time.Second, returned{}, "resume"},
		{3 * time.Second, returned{}, ""},
	}},
	{"R26/asleep again while Resume runs", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{5 * time.Second, told{awake}, "take lock, resume"},
		{6 * time.Second, told{sleeping}, "cancel hook"},
		{7 * time.Second, returned{}, "suspend"},
		{8 * time.Second, returned{}, "release lock"},
	}},
	{"R26/shutdown", []line{
		{0, granted, "take lock"},
		{time.Second, told{shuttingDown}, "stop"},
		{2 * time.Second, returned{}, "release lock"},
		{3 * time.Second, told{awake}, ""},
		{4 * time.Second, lost{}, ""},
		{5 * time.Second, granted, ""},
	}},
	{"R26/shutdown while Suspend runs, and while suspended", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, told{shuttingDown}, ""},
		{2 * time.Second, returned{}, "stop"},
		{10 * time.Second, tick{}, "release lock"},
		{11 * time.Second, returned{}, ""},
	}},
	{"R26/said twice, it moves no deadline", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{8 * time.Second, told{sleeping}, ""},
		{9 * time.Second, tick{}, "release lock"},
	}},
	{"R26/started while the system prepares: too late for a lock of any use", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, lost{}, "release lock"},
		{time.Second, granted, ""},
		{time.Second, told{sleeping}, ""},
		{2 * time.Second, returned{}, ""},
		{5 * time.Second, told{awake}, "take lock, resume"},
	}},
	{"R26/denied while the system prepares, asked for again on wake-up", []line{
		{0, granted, "take lock"},
		{0, denied{}, ""},
		{0, told{sleeping}, "suspend"},
		{time.Second, told{awake}, "take lock"}, // before Suspend has returned
		{2 * time.Second, returned{}, "resume"},
	}},
	{"R26/denied for good: no inhibitor is asked for again and again", []line{
		{0, granted, "take lock"},
		{0, denied{}, ""},
		{time.Second, told{awake}, ""},
		{2 * time.Second, tick{}, ""},
		{3 * time.Second, lost{}, ""},
		{4 * time.Second, granted, "take lock"},
	}},
	{"R26/logind restarts", []line{
		{0, granted, "take lock"},
		{time.Second, lost{}, "release lock"},
		{2 * time.Second, granted, "take lock"},
		{2 * time.Second, told{awake}, ""},
	}},
	{"R27/the wake-up was missed: the answer tells it", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{2 * time.Second, lost{}, ""},
		{3 * time.Second, granted, ""},
		{3 * time.Second, told{awake}, "take lock, resume"},
	}},
	{"R27/nobody is left to tell of the wake-up", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{2 * time.Second, lost{}, ""},
		{20 * time.Second, lost{}, ""}, // the bus came and went: no longer wait
		{31999 * time.Millisecond, tick{}, ""},
		{32 * time.Second, tick{}, "resume"},
		{33 * time.Second, returned{}, ""},
	}},
	{"R27/deaf for that long before Suspend has returned", []line{
		{0, granted, "take lock"},
		{0, told{sleeping}, "suspend"},
		{time.Second, lost{}, "release lock"},
		{31 * time.Second, tick{}, ""},
		{32 * time.Second, returned{}, "resume"},
	}},
}

func TestMachine(t *testing.T) {
	for _, story := range stories {
		t.Run(story.name, func(t *testing.T) {
			var m machine
			for i, l := range story.lines {
				if got := text(m.step(epoch.Add(l.at), l.ev, nil)); got != l.want {
					t.Fatalf("line %d, %s %T%+v: %q, want %q", i, l.at, l.ev, l.ev, got, l.want)
				}
			}
		})
	}
}

func text(actions []action) string {
	var names []string
	for _, a := range actions {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// model watches a machine from outside.
type model struct {
	machine
	t       *rapid.T
	now     time.Time
	held    bool
	running bool // a hook
	used    bool // the fabric is
	since   time.Time
	said    system
}

func (m *model) step(ev event) {
	for _, a := range m.machine.step(m.now, ev, nil) {
		m.check(a)
	}
	if limit := m.limit * 9 / 10; m.held && m.said != awake && m.now.Sub(m.since) >= limit {
		m.t.Fatalf("the system was held up for %s, allowed are %s", m.now.Sub(m.since), limit)
	}
}

func (m *model) check(a action) {
	switch a {
	case takeLock, releaseLock:
		if m.held == (a == takeLock) {
			m.t.Fatalf("%s, held: %t", a, m.held)
		}
		m.held = a == takeLock
	case cancelHook:
		if !m.running {
			m.t.Fatal("there is no hook to cancel")
		}
	default:
		if m.running || m.used == (a == callResume) && a != callStop {
			m.t.Fatalf("%s: a hook is running: %t, the fabric is used: %t", a, m.running, m.used)
		}
		m.running, m.used = true, a == callResume
	}
}

func (m *model) say(s system) {
	if s != m.said {
		m.said, m.since = s, m.now
	}
	m.step(told{s})
}

var systems = rapid.SampledFrom([]system{awake, sleeping, shuttingDown})

// Whatever happens: one hook at a time, in turn; one lock, given back in time;
// and when all has come to rest the daemon does what the system wants.
func TestMachineProperties(t *testing.T) { rapid.Check(t, play) }

func FuzzMachine(f *testing.F) {
	f.Add(make([]byte, 1<<16))
	f.Fuzz(rapid.MakeFuzz(play))
}

func play(t *rapid.T) {
	m := &model{t: t, now: epoch, used: true}
	t.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) {},
		"pass": func(t *rapid.T) {
			until := m.now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pass")))
			for at, ok := m.deadline(); ok && at.Before(until); at, ok = m.deadline() {
				m.now = at
				m.step(tick{})
			}
			m.now = until
			m.step(tick{})
		},
		"found": func(t *rapid.T) {
			m.step(lost{})
			m.said = awake // until it answers
			m.step(found{time.Duration(rapid.Int64Range(0, int64(maxLimit)).Draw(t, "limit"))})
			m.say(systems.Draw(t, "system"))
		},
		"lost": func(*rapid.T) { m.step(lost{}) },
		"denied": func(*rapid.T) {
			if m.held {
				m.held = false
				m.step(denied{})
			}
		},
		"told": func(t *rapid.T) {
			if m.there {
				m.say(systems.Draw(t, "system"))
			}
		},
		"returned": func(*rapid.T) {
			if m.running {
				m.running = false
				m.step(returned{})
			}
		},
	})
	m.rest()
}

// rest tells the machine that the system is awake, and lets hooks return.
func (m *model) rest() {
	m.step(lost{})
	m.said = awake
	m.step(granted)
	m.say(awake)
	for m.running {
		m.running = false
		m.step(returned{})
	}
	if m.ready == sleeping || m.machine.running || m.held != (m.ready == awake) || m.used != m.held {
		m.t.Fatalf("at rest: %s", fmt.Sprintf("%+v", m.machine))
	}
}
