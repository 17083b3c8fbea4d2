package power

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// line is an event and the expected actions.
type line struct {
	ev   event
	want string
}

var granted = found{awake}

var stories = []struct {
	name  string
	lines []line
}{
	{"R26/sleep and wake-up: suspend before the release, lock before the resume", []line{
		{granted, "take lock"},
		{announced{awake}, ""},
		{announced{sleeping}, "suspend"},
		{returned{}, "release lock"},
		{announced{awake}, "take lock, resume"},
		{returned{}, ""},
	}},
	{"R26/the sleep is called off while Suspend runs", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{announced{awake}, ""},
		{returned{}, "resume"},
		{returned{}, ""},
	}},
	{"R26/asleep again while Resume runs", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{returned{}, "release lock"},
		{announced{awake}, "take lock, resume"},
		{announced{sleeping}, "cancel hook"},
		{returned{}, "suspend"},
		{returned{}, "release lock"},
	}},
	{"R26/shutdown", []line{
		{granted, "take lock"},
		{announced{shuttingDown}, "stop"},
		{returned{}, "release lock"},
		{announced{awake}, ""},
		{lost{}, ""},
		{granted, ""},
	}},
	{"R26/shutdown while Suspend runs, and while suspended", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{announced{shuttingDown}, ""},
		{returned{}, "stop"},
		{returned{}, "release lock"},
	}},
	{"R26/a repeated signal changes nothing", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{announced{sleeping}, ""},
		{returned{}, "release lock"},
	}},
	{"R26/started while the system prepares: too late for a lock of any use", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{lost{}, "release lock"},
		{found{sleeping}, ""},
		{returned{}, ""},
		{announced{awake}, "take lock, resume"},
	}},
	{"R26/denied while the system prepares, asked for again on wake-up", []line{
		{granted, "take lock"},
		{denied{}, ""},
		{announced{sleeping}, "suspend"},
		{announced{awake}, "take lock"}, // before Suspend has returned
		{returned{}, "resume"},
	}},
	{"R26/denied: an inhibitor is not requested again until something changes", []line{
		{granted, "take lock"},
		{denied{}, ""},
		{announced{awake}, ""},
		{lost{}, ""},
		{granted, "take lock"},
	}},
	{"R26/logind restarts", []line{
		{granted, "take lock"},
		{lost{}, "release lock"},
		{granted, "take lock"},
		{announced{awake}, ""},
	}},
	{"R27/logind is lost in sleep, so the wake-up may be missed: resume", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{returned{}, "release lock"},
		{lost{}, "resume"},
		{lost{}, ""}, // the bus was back for a moment
		{returned{}, ""},
		{granted, "take lock"},
	}},
	{"R27/the same, but the new logind still prepares for the sleep", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{returned{}, "release lock"},
		{lost{}, "resume"},
		{found{sleeping}, "cancel hook"},
		{returned{}, "suspend"},
		{returned{}, ""},
		{announced{awake}, "take lock, resume"},
	}},
	{"R27/logind is lost before Suspend has returned", []line{
		{granted, "take lock"},
		{announced{sleeping}, "suspend"},
		{lost{}, "release lock"},
		{returned{}, "resume"},
	}},
}

func TestMachine(t *testing.T) {
	for _, story := range stories {
		t.Run(story.name, func(t *testing.T) {
			var m machine
			for i, l := range story.lines {
				if got := text(m.step(l.ev)); got != l.want {
					t.Fatalf("line %d, %T%+v: %q, want %q", i, l.ev, l.ev, got, l.want)
				}
			}
		})
	}
}

func text(actions []action) string {
	var names []string
	for _, a := range actions {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}

// model watches a machine from outside.
type model struct {
	machine
	t       *rapid.T
	held    bool
	running bool // a hook
	used    bool // the fabric is
}

func (m *model) step(ev event) {
	for _, a := range m.machine.step(ev) {
		m.check(a)
	}
	if m.held && !m.running && m.system != awake {
		m.t.Fatal("the system is delayed although no hook is running")
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

var systems = rapid.SampledFrom([]system{awake, sleeping, shuttingDown})

// In every sequence of events, hooks run one at a time and in turn, the lock is taken once and
// released as soon as no hook runs, and at rest the daemon is in the state that the system needs.
func TestMachineProperties(t *testing.T) { rapid.Check(t, play) }

func FuzzMachine(f *testing.F) {
	f.Add(make([]byte, 1<<16))
	f.Fuzz(rapid.MakeFuzz(play))
}

func play(t *rapid.T) {
	m := &model{t: t, used: true}
	t.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) {},
		"found": func(t *rapid.T) {
			m.step(lost{})
			m.step(found{systems.Draw(t, "system")})
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
				m.step(announced{systems.Draw(t, "system")})
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

// rest reports that the system is awake, and lets hooks return.
func (m *model) rest() {
	m.step(lost{})
	m.step(granted)
	for m.running {
		m.running = false
		m.step(returned{})
	}
	if m.ready == sleeping || m.machine.running || m.held != (m.ready == awake) || m.used != m.held {
		m.t.Fatalf("at rest: %s", fmt.Sprintf("%+v", m.machine))
	}
}
