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

// monitor is a permanent `ip monitor`, which shows that ib0 never disappears
// and keeps its addresses and routes.
type monitor struct {
	h *host

	mu     sync.Mutex
	losses []string
}

// lossOf matches a line about the deletion of ib0 or of one of its addresses or
// routes.
var lossOf = regexp.MustCompile(`\] Deleted .*\b` + ifName + `\b`)

// monitor starts a monitor and returns once it has seen a change.
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
	h.changeUntilSeen(seen)
	return m
}

// changeUntilSeen makes changes until the monitor reports one.
func (h *host) changeUntilSeen(seen <-chan struct{}) {
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

// read notes deletions until the program ends.
func (m *monitor) read(out io.Reader, seen func()) {
	for lines := bufio.NewScanner(out); lines.Scan(); seen() {
		if lossOf.MatchString(lines.Text()) {
			m.mu.Lock()
			m.losses = append(m.losses, lines.Text())
			m.mu.Unlock()
		}
	}
}

// lost returns the deletions so far.
func (m *monitor) lost() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.losses)
}

// requireKept fails the test if ib0 lost something.
func (m *monitor) requireKept(tb testing.TB) {
	tb.Helper()
	for _, line := range m.lost() {
		tb.Errorf("host %d lost: %s", m.h.number, line)
	}
}

// carrierChanges returns the kernel's count of changes of ib0's carrier. The
// kernel's messages are delayed for up to a second and may hide a change.
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
