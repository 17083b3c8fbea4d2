package top

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

var update = flag.Bool("update", false, "rewrite the frames in testdata")

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)

// daemon is a Source that answers with what a test has put in it.
type daemon struct {
	status *report.Status
	events []journal.Entry
	err    error
}

func (d *daemon) Status(context.Context) (*report.Status, error) { return d.status, d.err }

func (d *daemon) Events(_ context.Context, since uint64) (after []journal.Entry, _ error) {
	for _, e := range d.events {
		if e.Seq > since {
			after = append(after, e)
		}
	}
	return after, d.err
}

// working is a daemon that has run for the given time, with traffic on ib0 and none on ib1.
func working(passed time.Duration) *daemon {
	seconds := uint64(passed / time.Second)
	count := func(n uint64) report.Count { return report.Count{Value: n} }
	return &daemon{
		status: &report.Status{
			Version: "0.9.0", PID: 4711, Started: start, Time: start.Add(passed),
			Devices: []report.Device{{Name: "soft", State: report.DeviceOpen, Recovery: &report.Recovery{}}},
			Interfaces: []report.Interface{
				{
					Name: "ib0", Time: start.Add(passed), Device: "soft", MTU: 2044, State: "up", Carrier: true, Drops: 7 * seconds,
					Groups:   []report.Group{{}},
					Peers:    []report.Peer{{GID: hca.GID{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 2}, QPN: 0x22, IPs: []string{"10.0.0.2"}}},
					Counters: report.Counters{"tx_outstanding": count(12), "rx_other": count(100 * seconds), "rx_drop_runt": count(5 * seconds), "tx_wc_rem_op_err": count(2 * seconds)},
					Kernel:   report.Counters{"kernel_rx_bytes": count(125_000_000 * seconds), "kernel_rx_packets": count(80_000 * seconds), "kernel_tx_bytes": count(1000 * seconds * seconds), "kernel_tx_packets": count(10 * seconds)},
					Recovery: &report.Recovery{},
				},
				{Name: "ib1", Time: start.Add(passed), Device: "soft", MTU: 2044, State: "down", Detail: "ib1 is not up: run 'ip link set ib1 up'", Recovery: &report.Recovery{}},
			},
		},
		events: []journal.Entry{{Seq: 1, Time: start, Scope: "soft", Kind: journal.KindNote, Text: "opened"}},
	}
}

// run passes messages to a model. It carries out the model's reads, but not its waits.
func run(t *testing.T, m *Model, d *daemon, msgs ...tea.Msg) {
	t.Helper()
	m.source = d
	for _, msg := range msgs {
		next, cmd := m.Update(msg)
		if next != m {
			t.Fatalf("%T led to another model", msg)
		}
		if _, ok := msg.(again); ok {
			run(t, m, d, cmd())
		}
	}
}

// after is a model that has read a working daemon once a second.
func after(t *testing.T, seconds int) *Model {
	t.Helper()
	m := New(t.Context(), nil, time.Second)
	for s := range seconds {
		run(t, m, working(time.Duration(s)*time.Second), again{})
	}
	return m
}

func key(k string) tea.KeyPressMsg {
	if code, ok := map[string]rune{"down": tea.KeyDown, "up": tea.KeyUp, "esc": tea.KeyEscape}[k]; ok {
		return tea.KeyPressMsg{Code: code}
	}
	return tea.KeyPressMsg{Code: rune(k[0]), Text: k}
}

// Each frame is what a terminal without colours shows.
func TestFrames(t *testing.T) {
	storm := working(30 * time.Second)
	ib0 := &storm.status.Interfaces[0]
	ib0.State, ib0.Carrier, ib0.Detail = "recovering", false, "completion queue error"
	ib0.Recovery = &report.Recovery{
		Rung: "rebuild_cq", Since: storm.status.Time.Add(-3 * time.Millisecond), Recovered: 41,
		History: []report.RecoveryRecord{{Rung: "reset_qp", Reason: "request_error", End: start, Outage: journal.Seconds(2 * time.Millisecond)}, {Rung: "rebuild_cq", Reason: "cq_error"}},
	}
	storm.status.Devices[0].State, storm.status.Devices[0].LastError = "waiting", "no such device"
	for n := range uint64(40) {
		storm.events = append(storm.events, journal.Entry{Seq: n + 2, Time: start.Add(time.Duration(n) * time.Second), Scope: "ib0", Kind: journal.KindRecovered, Rung: "reset_qp", Reason: "request_error", Outage: journal.Seconds(2 * time.Millisecond)})
	}
	for name, msgs := range map[string][]tea.Msg{
		"working":    nil,
		"second":     {key("down")},
		"around":     {key("up"), key("up")},
		"paused":     {key("p")},
		"storm":      {again{}},
		"wide":       {again{}, tea.WindowSizeMsg{Width: 132, Height: 43}},
		"narrow":     {again{}, tea.WindowSizeMsg{Width: 30, Height: 8}},
		"one line":   {tea.WindowSizeMsg{Width: 80, Height: 1}},
		"unreadable": {answer{err: errors.New("no daemon answers")}},
	} {
		t.Run(name, func(t *testing.T) {
			m := after(t, 20)
			run(t, m, storm, msgs...)
			got := ansi.Strip(m.View().Content) + "\n"
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got != string(want) {
				t.Errorf("got\n%s\nwant, %v\n%s", got, err, want)
			}
		})
	}
}

// The keys that end the program do so, and no other key does.
func TestQuit(t *testing.T) {
	m := after(t, 1)
	for k, quits := range map[string]bool{"q": true, "esc": true, "p": false, "down": false, "x": false} {
		_, cmd := m.Update(key(k))
		if quits != (cmd != nil && reflect.DeepEqual(cmd(), tea.Quit())) {
			t.Errorf("key %s: quits %v", k, !quits)
		}
	}
}

// While the display is paused, nothing changes, and afterwards no event is missing.
func TestPause(t *testing.T) {
	m := after(t, 2)
	run(t, m, nil, key("p"))
	before := m.View().Content
	d := working(10 * time.Second)
	d.events = append(d.events, journal.Entry{Seq: 2, Scope: "ib0", Kind: journal.KindFault, Text: "cq_err"})
	run(t, m, d, again{})
	if got := m.View().Content; got != before {
		t.Errorf("changed while paused:\n%s", got)
	}
	run(t, m, d, key("p"), again{})
	if !strings.Contains(m.View().Content, "cq_err") {
		t.Errorf("event missing:\n%s", m.View().Content)
	}
}

// After a restart of the daemon, whose counters and events begin at zero, the rates and events are
// only those of the new one.
func TestRestart(t *testing.T) {
	m := after(t, 20)
	fresh := working(0)
	fresh.status.PID++
	fresh.status.Time = start.Add(time.Hour)
	fresh.events[0].Text = "opened again"
	run(t, m, fresh, again{})
	if len(m.events) != 1 || m.events[0].Text != "opened again" {
		t.Errorf("events %v", m.events)
	}
	if n := len(m.history["ib0"]); n != 19 {
		t.Errorf("%d samples, want the 19 of before", n)
	}
}

// A failure keeps what is known and shows the error, until the daemon answers again.
func TestNoAnswer(t *testing.T) {
	m := after(t, 3)
	run(t, m, &daemon{err: errors.New("it hangs\x1b[31m")}, again{})
	text := m.View().Content
	if !strings.Contains(text, `it hangs\u001b[31m`) || !strings.Contains(text, "ib0") {
		t.Errorf("%q", text)
	}
	run(t, m, working(3*time.Second), again{})
	if text := m.View().Content; strings.Contains(text, "hangs") {
		t.Errorf("%q", text)
	}
}

// Names with control characters do not reach the terminal, and no line is wider or longer than
// the window.
func TestHostileNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringOfN(rapid.SampledFrom([]rune("a\x1b]0;\a\n\r\t\u202e日│")), 0, 30, -1)
		d := working(time.Second)
		f := &d.status.Interfaces[0]
		f.Name, f.State, f.Detail, f.Device = name.Draw(t, "name"), name.Draw(t, "state"), name.Draw(t, "detail"), name.Draw(t, "device")
		f.Peers[0].IPs = []string{name.Draw(t, "ip")}
		f.Counters["rx_drop_"+name.Draw(t, "counter")] = report.Count{Value: 1}
		d.status.Devices[0].Name, d.status.Version = name.Draw(t, "hca"), name.Draw(t, "version")
		d.events[0].Text, d.events[0].Scope = name.Draw(t, "text"), name.Draw(t, "scope")
		size := tea.WindowSizeMsg{Width: rapid.IntRange(0, 200).Draw(t, "width"), Height: rapid.IntRange(0, 60).Draw(t, "height")}
		m := New(context.Background(), d, time.Second)
		m.Update(size)
		m.Update(m.read()())
		lines := m.lines()
		if len(lines) > max(size.Height, 1) {
			t.Errorf("%d lines in a window of %d", len(lines), size.Height)
		}
		for _, line := range lines {
			if lipgloss.Width(line) > size.Width {
				t.Errorf("width %d in a window of %d: %q", lipgloss.Width(line), size.Width, line)
			}
			if plain := ansi.Strip(line); strings.ContainsAny(plain, "\x1b\a\n\r\t\u202e") || strings.Contains(line, "\x1b]") {
				t.Errorf("%q", line)
			}
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	m := New(t.Context(), nil, time.Second)
	for s := range maxSamples + 10 {
		d := working(time.Duration(s) * time.Second)
		d.events = nil
		for n := range uint64(10) {
			d.events = append(d.events, journal.Entry{Seq: uint64(s)*10 + n + 1})
		}
		run(t, m, d, again{})
	}
	if len(m.history["ib0"]) != maxSamples || len(m.events) != maxEvents || m.events[maxEvents-1].Seq != (maxSamples+10)*10 {
		t.Errorf("%d samples, %d events", len(m.history["ib0"]), len(m.events))
	}
	gone := working((maxSamples + 10) * time.Second)
	gone.status.Interfaces = gone.status.Interfaces[1:]
	run(t, m, gone, again{})
	if _, kept := m.history["ib0"]; kept {
		t.Error("the history of a removed interface is kept")
	}
}

func TestSI(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 7: "7", 999: "999", 999.6: "1.00 k", 1234: "1.23 k", 9994: "9.99 k", 9996: "10.0 k", 123456: "123 k", 999_499: "999 k", 999_600: "1.00 M", 8.1e9: "8.10 G", 3e12: "3.00 T", 5e15: "5000 T",
	} {
		if got := si(v); got != want {
			t.Errorf("si(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestSparkline(t *testing.T) {
	if got := sparkline([]float64{0, 1, 4, 8}, 8); got != "▁▁▄█" {
		t.Errorf("%s", got)
	}
	if got := sparkline([]float64{0, 0}, 0); got != "▁▁" {
		t.Errorf("%s", got)
	}
}
