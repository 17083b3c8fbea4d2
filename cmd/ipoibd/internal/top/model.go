package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// Bounds of what a model remembers.
const (
	maxSamples = 512  // of an interface's throughput: as wide as a terminal may be
	maxEvents  = 1024 // as many as the daemon keeps
)

// Source is a running daemon. Its methods block until the daemon answers, or until ctx ends.
type Source interface {
	Status(ctx context.Context) (*report.Status, error)
	// Events returns the entries of the journal after number since.
	Events(ctx context.Context, since uint64) ([]journal.Entry, error)
}

// Model is the state of the display. Only bubbletea's loop calls its methods.
type Model struct {
	ctx      context.Context // of the program
	source   Source
	interval time.Duration

	width, height int
	paused        bool
	selected      string // name of the interface that is shown in detail

	before, status *report.Status // the two latest ones of one daemon
	failed         error          // why the latest attempt failed
	history        map[string][]Rates
	events         []journal.Entry
}

// answer is the result of one attempt to read status and events.
type answer struct {
	status *report.Status
	events []journal.Entry
	err    error
}

// again asks for the next attempt.
type again struct{}

// New returns a model that reads the source at each interval.
func New(ctx context.Context, source Source, interval time.Duration) *Model {
	return &Model{ctx: ctx, source: source, interval: interval, width: 80, height: 24, history: map[string][]Rates{}}
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.read() }

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	case again:
		return m, m.read()
	case answer:
		if !m.paused {
			m.take(msg)
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return again{} })
	}
	return m, nil
}

// press carries out a key.
func (m *Model) press(key string) tea.Cmd {
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "p", "space":
		m.paused = !m.paused
	case "down", "j", "tab":
		m.move(1)
	case "up", "k", "shift+tab":
		m.move(-1)
	}
	return nil
}

// move selects an interface below or above the selected one.
func (m *Model) move(by int) {
	if m.status == nil || len(m.status.Interfaces) == 0 {
		return
	}
	n := len(m.status.Interfaces)
	m.selected = m.status.Interfaces[(m.index()+by+n)%n].Name
}

// index returns the index of the selected interface, or 0 if it has gone.
func (m *Model) index() int {
	for i := range m.status.Interfaces {
		if m.status.Interfaces[i].Name == m.selected {
			return i
		}
	}
	return 0
}

// read returns the command that asks the daemon. No two run at the same time, because only an
// answer leads to the next one.
func (m *Model) read() tea.Cmd {
	last, since := m.status, uint64(0)
	if n := len(m.events); n > 0 {
		since = m.events[n-1].Seq
	}
	return func() tea.Msg {
		s, err := m.source.Status(m.ctx)
		if err != nil {
			return answer{err: err}
		}
		if !sameDaemon(last, s) {
			since = 0
		}
		events, err := m.source.Events(m.ctx, since)
		return answer{s, events, err}
	}
}

func sameDaemon(a, b *report.Status) bool {
	return a != nil && a.PID == b.PID && a.Started.Equal(b.Started)
}

// take stores an answer. After a restart of the daemon nothing is compared with the daemon before.
func (m *Model) take(a answer) {
	m.failed = a.err
	if a.err != nil {
		return
	}
	m.before = m.status
	if !sameDaemon(m.status, a.status) {
		m.before, m.events = nil, nil
	}
	m.status = a.status
	m.events = latest(append(m.events, a.events...), maxEvents)
	known := map[string][]Rates{}
	for i := range m.status.Interfaces {
		name := m.status.Interfaces[i].Name
		known[name] = m.history[name]
		if r := ratesOf(m.before, m.status, name); r != nil {
			known[name] = latest(append(known[name], *r), maxSamples)
		}
	}
	m.history = known
}

func latest[T any](list []T, most int) []T { return list[max(len(list)-most, 0):] }
