package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/docs"
)

// Styles. Bubbletea removes the colours if the terminal has none, or if NO_COLOR is set.
var (
	title = lipgloss.NewStyle().Bold(true)
	faint = lipgloss.NewStyle().Faint(true)
	good  = lipgloss.NewStyle().Foreground(lipgloss.Green)
	warn  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	bad   = lipgloss.NewStyle().Foreground(lipgloss.Red)
)

const (
	footer   = "q quit   ↑ ↓ interface   p pause"
	maxPeers = 5 // in the detail; the table has their number
)

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen, v.WindowTitle = true, "ipoibd top"
	return v
}

// lines returns the screen from top to bottom, not larger than the window. The footer is always in
// it; what does not fit is left out from the end of the rest: first old events.
func (m *Model) lines() []string {
	body := m.header()
	if m.status != nil {
		body = append(body, m.table()...)
		if len(m.status.Interfaces) > 0 {
			body = append(body, m.detail(&m.status.Interfaces[m.index()])...)
		}
		body = append(body, m.devices()...)
		if room := m.height - len(body) - 3; room > 0 && len(m.events) > 0 {
			body = append(body, "", title.Render("EVENTS"))
			for _, e := range latest(m.events, room) {
				body = append(body, eventLine(e))
			}
		}
	}
	body = append(body[:min(len(body), max(m.height-1, 0))], faint.Render(footer))
	for i, line := range body {
		body[i] = ansi.Truncate(line, m.width, "…")
	}
	return body
}

func (m *Model) header() (lines []string) {
	if s := m.status; s != nil {
		up := s.Time.Sub(s.Started).Round(time.Second)
		lines = append(lines,
			escaped("%s   pid %d, up %s   %s", s.Version, s.PID, up, s.Time.Local().Format(time.TimeOnly)))
	}
	switch {
	case m.failed != nil:
		lines = append(lines, bad.Render(escaped("no answer, retrying: %v", m.failed)))
	case m.status == nil:
		lines = append(lines, "waiting for the daemon")
	case m.paused:
		lines = append(lines, warn.Render("paused"))
	default:
		lines = append(lines, "")
	}
	return lines
}

// table has a line for each interface.
func (m *Model) table() []string {
	width := len("INTERFACE")
	for i := range m.status.Interfaces {
		width = max(width, len(m.status.Interfaces[i].Name))
	}
	row := "%s %-" + strconv.Itoa(width) + "s  %-15s %8s %8s %8s %8s %7s %5v"
	lines := []string{title.Render(fmt.Sprintf(row, " ", "INTERFACE", "STATE OR RUNG",
		"RX bit/s", "packet/s", "TX bit/s", "packet/s", "drop/s", "PEERS"))}
	for i := range m.status.Interfaces {
		f := &m.status.Interfaces[i]
		mark := " "
		if i == m.index() {
			mark = "›"
		}
		rates, lossy := [5]string{"-", "-", "-", "-", "-"}, false
		if h := m.history[f.Name]; len(h) > 0 {
			r := h[len(h)-1]
			lost := r.Drops + r.KernelDrops
			rates, lossy = [5]string{si(r.RXBits), si(r.RXPackets), si(r.TXBits), si(r.TXPackets), si(lost)}, lost > 0
		}
		text := escaped(row, mark, f.Name, state(f), rates[0], rates[1], rates[2], rates[3], rates[4], len(f.Peers))
		switch {
		case state(f) != "up":
			text = bad.Render(text)
		case lossy:
			text = warn.Render(text)
		}
		lines = append(lines, text)
	}
	return lines
}

// state is the rung of a recovery that is in progress, or else the state.
func state(f *report.Interface) string {
	switch {
	case !f.Recovery.Since.IsZero():
		return f.Recovery.Rung
	case f.State == report.InterfaceUp && !f.Carrier:
		return "no carrier"
	}
	return f.State
}

// detail describes one interface: its throughput over time, drops, recoveries and peers.
func (m *Model) detail(f *report.Interface) []string {
	lines := []string{"", title.Render(escaped("%s on device %s, MTU %d", f.Name, f.Device, f.MTU))}
	for _, u := range diagnose.NotReady(m.status) {
		if u.Interface == f.Name {
			lines = append(lines, bad.Render(escaped("why     %s", u.Why)))
		}
	}
	history := latest(m.history[f.Name], max(m.width-24, 1))
	rx, tx := make([]float64, len(history)), make([]float64, len(history))
	for i, r := range history {
		rx[i], tx[i] = r.RXBits, r.TXBits
	}
	lines = append(lines, graph("RX", rx), graph("TX", tx))
	lines = append(lines, escaped("sends   %d outstanding, %d own messages queued",
		f.Counters[docs.InterfaceTxOutstanding].Value, f.Counters[docs.InterfaceTxQueued].Value))
	drops := escaped("drops   %d", f.Drops)
	if n := len(history); n > 0 {
		for _, r := range latest(history, 1)[0].Reasons {
			drops += warn.Render(escaped("   %s %s/s", r.Counter, si(r.Rate)))
		}
	}
	lines = append(lines, drops, recoveries(f.Recovery))
	if n := len(f.Stations); n > 1 {
		lines = append(lines, escaped("stations %d behind it", n-1))
	}
	for _, p := range f.Peers[:min(len(f.Peers), maxPeers)] {
		lines = append(lines, escaped("peer    %s  QP %s  %s", p.GID, p.QPN, strings.Join(p.IPs, ", ")))
	}
	return lines
}

// graph draws a throughput over time, scaled to its peak.
func graph(label string, bits []float64) string {
	peak := 0.0
	for _, b := range bits {
		peak = max(peak, b)
	}
	return fmt.Sprintf("%-7s %s  peak %sbit/s", label, good.Render(sparkline(bits, peak)), si(peak))
}

// sparkline draws each value as a block whose height is its part of the peak.
func sparkline(values []float64, peak float64) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		height := 0
		if peak > 0 {
			height = int(v / peak * float64(len(blocks)-1))
		}
		b.WriteRune(blocks[height])
	}
	return b.String()
}

func recoveries(r *report.Recovery) string {
	text := escaped("recoveries %d", r.Recovered)
	for i := len(r.History) - 1; i >= 0; i-- {
		if l := r.History[i]; !l.End.IsZero() {
			outage := terminal.Short(time.Duration(l.Outage))
			return text + escaped("   the last by %s because of %s, outage %s", l.Rung, l.Reason, outage)
		}
	}
	return text
}

func (m *Model) devices() (lines []string) {
	for i := range m.status.Devices {
		d := &m.status.Devices[i]
		text := escaped("device %s   %s   drops %d   recoveries %d", d.Name, d.State, d.Drops, d.Recovery.Recovered)
		if d.State != report.DeviceOpen {
			text = bad.Render(text + escaped("   %s", d.LastError))
		}
		lines = append(lines, text)
	}
	return append([]string{""}, lines...)
}

func eventLine(e journal.Entry) string {
	text := escaped("%s  %-8s %-9s %-15s %s", e.Time.Local().Format("15:04:05.000"), e.Scope, e.Kind, e.Rung,
		strings.TrimSpace(e.Reason+" "+e.Text))
	if e.Kind == journal.KindRecovered {
		return good.Render(text + escaped("  outage %s", terminal.Short(time.Duration(e.Outage))))
	}
	return text
}

// escaped is fmt.Sprintf, but escapes control characters in the arguments.
func escaped(format string, args ...any) string {
	var b strings.Builder
	_, _ = terminal.Fprintf(&b, format, args...) // a Builder does not fail
	return b.String()
}

// si formats a number with three digits and an SI prefix.
func si(v float64) string {
	for _, prefix := range []string{"", "k", "M", "G", "T"} {
		if v < 999.5 || prefix == "T" {
			digits := 2
			switch {
			case prefix == "" || v >= 99.95:
				digits = 0
			case v >= 9.995:
				digits = 1
			}
			return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, prefix))
		}
		v /= 1000
	}
	return ""
}
