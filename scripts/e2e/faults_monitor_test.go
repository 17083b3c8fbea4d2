package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"sync"
	"testing"
)

// monitor is an `ip monitor` that runs all the time: a witness that ib0 never
// disappears and keeps its addresses and routes.
type monitor struct {
	h *host

	mu     sync.Mutex
	losses []string
}

// lossOf matches a line that says that ib0, or what belongs to it, is gone.
var lossOf = regexp.MustCompile(`\] Deleted .*\b` + ifName + `\b`)

// monitor begins, and has seen a change when it returns.
func (h *host) monitor() *monitor {
	h.tb.Helper()
	m := &monitor{h: h}
	cmd := h.Command("ip", "-ts", "-oneline", "monitor", "link", "address", "route")
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start ip monitor: %v", err)
	}
	seen, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); m.read(out, sync.OnceFunc(func() { close(seen) })) }()
	h.tb.Cleanup(func() { end(h.tb, cmd); <-ended })
	h.awaken(seen)
	return m
}

// awaken makes changes until the monitor listens.
func (h *host) awaken(seen <-chan struct{}) {
	h.tb.Helper()
	eventually(h.tb, startLimit, "ip monitor listens", func() bool {
		h.Run("ip", "link", "set", "lo", "alias", "seen")
		h.Run("ip", "link", "set", "lo", "alias", "")
		select {
		case <-seen:
			return true
		default:
			return false
		}
	})
}

// read notes what is lost until the program ends.
func (m *monitor) read(out io.Reader, seen func()) {
	for lines := bufio.NewScanner(out); lines.Scan(); seen() {
		if lossOf.MatchString(lines.Text()) {
			m.mu.Lock()
			m.losses = append(m.losses, lines.Text())
			m.mu.Unlock()
		}
	}
}

// lost returns what was lost up to now.
func (m *monitor) lost() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.losses)
}

// requireKept fails the test when ib0 lost something.
func (m *monitor) requireKept(tb testing.TB) {
	tb.Helper()
	for _, line := range m.lost() {
		tb.Errorf("host %d: %s", m.h.number, line)
	}
}

// carrierChanges counts how often the carrier of ib0 went or came back, as the
// kernel does: its messages are held back for up to a second and may hide one.
func (h *host) carrierChanges() int {
	h.tb.Helper()
	var links []struct {
		Stats struct {
			TX struct {
				CarrierChanges int `json:"carrier_changes"`
			} `json:"tx"`
		} `json:"stats64"`
	}
	out := h.Run("ip", "-json", "-statistics", "-statistics", "link", "show", ifName)
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		h.tb.Fatalf("ip -json link: %v\n%s", err, out)
	}
	return links[0].Stats.TX.CarrierChanges
}
