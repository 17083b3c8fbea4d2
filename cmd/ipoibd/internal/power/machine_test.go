package power

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(0, 0)

// line is one event at a time, and the expected actions.
type line struct {
	at   time.Duration
	ev   event
	want string
}

// logind grants ten seconds: the hook gets eight, and after nine the lock is released.
var granted = found{limit: 10 * time.Second}

var stories = []struct {
	name  string
	lines []line
}{
	{"R26/sleep and wake-up: suspend before the release, lock before the resume", []line{
		{0, granted, "take lock"},
		{0, announced{awake}, ""},
		{100 * time.Second, announced{sleeping}, "suspend"},
		{101 * time.Second, returned{}, "release lock"},
		{110 * time.Second, tick{}, ""},
		{200 * time.Second, announced{awake}, "take lock, resume"},
		{201 * time.Second, returned{}, ""},
	}},
	{"R26/a hook that hangs delays the sleep no longer than allowed", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{8999 * time.Millisecond, tick{}, ""},
		{9 * time.Second, tick{}, "release lock"},
		{200 * time.Second, announced{awake}, "take lock"},
		{201 * time.Second, returned{}, "resume"},
		{202 * time.Second, returned{}, ""},
	}},
	{"R26/the sleep is called off while Suspend runs", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, announced{awake}, ""},
		{2 * time.Second, returned{}, "resume"},
		{3 * time.Second, returned{}, ""},
	}},
	{"R26/asleep again while Resume runs", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{5 * time.Second, announced{awake}, "take lock, resume"},
		{6 * time.Second, announced{sleeping}, "cancel hook"},
		{7 * time.Second, returned{}, "suspend"},
		{8 * time.Second, returned{}, "release lock"},
	}},
	{"R26/shutdown", []line{
		{0, granted, "take lock"},
		{time.Second, announced{shuttingDown}, "stop"},
		{2 * time.Second, returned{}, "release lock"},
		{3 * time.Second, announced{awake}, ""},
		{4 * time.Second, lost{}, ""},
		{5 * time.Second, granted, ""},
	}},
	{"R26/shutdown while Suspend runs, and while suspended", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, announced{shuttingDown}, ""},
		{2 * time.Second, returned{}, "stop"},
		{10 * time.Second, tick{}, "release lock"},
		{11 * time.Second, returned{}, ""},
	}},
	{"R26/a repeated signal moves no deadline", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{8 * time.Second, announced{sleeping}, ""},
		{9 * time.Second, tick{}, "release lock"},
	}},
	{"R26/started while the system prepares: too late for a lock of any use", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, lost{}, "release lock"},
		{time.Second, found{10 * time.Second, sleeping}, ""},
		{2 * time.Second, returned{}, ""},
		{5 * time.Second, announced{awake}, "take lock, resume"},
	}},
	{"R26/denied while the system prepares, asked for again on wake-up", []line{
		{0, granted, "take lock"},
		{0, denied{}, ""},
		{0, announced{sleeping}, "suspend"},
		{time.Second, announced{awake}, "take lock"}, // before Suspend has returned
		{2 * time.Second, returned{}, "resume"},
	}},
	{"R26/denied: an inhibitor is not requested again until something changes", []line{
		{0, granted, "take lock"},
		{0, denied{}, ""},
		{time.Second, announced{awake}, ""},
		{2 * time.Second, tick{}, ""},
		{3 * time.Second, lost{}, ""},
		{4 * time.Second, granted, "take lock"},
	}},
	{"R26/logind restarts", []line{
		{0, granted, "take lock"},
		{time.Second, lost{}, "release lock"},
		{2 * time.Second, granted, "take lock"},
		{2 * time.Second, announced{awake}, ""},
	}},
	{"R27/logind is lost in sleep, so the wake-up may be missed: resume", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{2 * time.Second, lost{}, "resume"},
		{20 * time.Second, lost{}, ""}, // the bus was back for a moment
		{21 * time.Second, returned{}, ""},
		{22 * time.Second, granted, "take lock"},
	}},
	{"R27/the same, but the new logind still prepares for the sleep", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, returned{}, "release lock"},
		{2 * time.Second, lost{}, "resume"},
		{3 * time.Second, found{10 * time.Second, sleeping}, "cancel hook"},
		{4 * time.Second, returned{}, "suspend"},
		{5 * time.Second, returned{}, ""},
		{6 * time.Second, announced{awake}, "take lock, resume"},
	}},
	{"R27/logind is lost before Suspend has returned", []line{
		{0, granted, "take lock"},
		{0, announced{sleeping}, "suspend"},
		{time.Second, lost{}, "release lock"},
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
		m.t.Fatalf("the system was delayed for %s, allowed are %s", m.now.Sub(m.since), limit)
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
	m.step(announced{s})
}

var systems = rapid.SampledFrom([]system{awake, sleeping, shuttingDown})

// In every sequence of events, hooks run one at a time and in turn, the lock is taken once and
// released in time, and at rest the daemon is in the state that the system needs.
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
			m.lose()
			if m.said = systems.Draw(t, "system"); m.said != awake {
				m.since = m.now
			}
			m.step(found{time.Duration(rapid.Int64Range(0, int64(maxLimit)).Draw(t, "limit")), m.said})
		},
		"lost": func(*rapid.T) { m.lose() },
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

// lose reports that logind is lost. The machine then assumes that the system is awake.
func (m *model) lose() {
	m.said = awake
	m.step(lost{})
}

// rest reports that the system is awake, and lets hooks return.
func (m *model) rest() {
	m.lose()
	m.step(granted)
	for m.running {
		m.running = false
		m.step(returned{})
	}
	if m.ready == sleeping || m.machine.running || m.held != (m.ready == awake) || m.used != m.held {
		m.t.Fatalf("at rest: %s", fmt.Sprintf("%+v", m.machine))
	}
}
