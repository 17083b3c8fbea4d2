package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// streamRate is low enough for two shared processors to carry it and still
	// answer a probe in time; the tests measure recovery, not speed.
	streamRate = "100M"
	// streamLife is the maximum duration that iperf3 accepts.
	streamLife = "86400"
	// streamLimit is how long a connection may take to carry data again: ten
	// times TCP's pause before its fourth attempt.
	streamLimit = 16 * time.Second
)

// stream is one TCP connection of iperf3 that lasts as long as the test.
type stream struct {
	from *host
	port string // of this end, which identifies the connection
}

// stream starts a stream.
func (h *host) stream(to *host) *stream {
	h.tb.Helper()
	to.background("iperf3", "--server")
	eventually(h.tb, startLimit, "iperf3 listens", func() bool {
		return strings.Contains(to.Run("ss", "-Hltn", "sport = 5201"), "5201")
	})
	h.background("iperf3", "--client", to.ip4(), "--time", streamLife, "--bitrate", streamRate, "--interval", "0")
	s := &stream{from: h}
	eventually(h.tb, startLimit, "iperf3 sends", func() bool {
		for _, c := range h.connections() {
			if c.acked > 1<<20 { // the control connection stays small
				s.port = c.port
			}
		}
		return s.port != ""
	})
	return s
}

// background starts a program that runs until the end of the test.
func (h *host) background(name string, args ...string) {
	h.tb.Helper()
	cmd := h.Command(name, args...)
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start %s: %v", name, err)
	}
	h.tb.Cleanup(func() { end(h.tb, cmd) })
}

// connection is a TCP connection to iperf3's port as reported by ss.
type connection struct {
	port  string
	acked uint64 // bytes that the other end has acknowledged
}

var (
	established = regexp.MustCompile(`^ESTAB\s+\d+\s+\d+\s+\S+:(\d+)\s`)
	bytesAcked  = regexp.MustCompile(`\sbytes_acked:(\d+)`)
)

// connections returns the established connections that have carried data.
func (h *host) connections() (list []connection) {
	h.tb.Helper()
	for line := range strings.Lines(h.Run("ss", "-HOtin", "dport = 5201")) {
		port, acked := established.FindStringSubmatch(line), bytesAcked.FindStringSubmatch(line)
		if port == nil || acked == nil {
			continue
		}
		n, err := strconv.ParseUint(acked[1], 10, 64)
		if err != nil {
			h.tb.Fatalf("ss: %v", err)
		}
		list = append(list, connection{port[1], n})
	}
	return list
}

// acked returns the number of acknowledged bytes, or an error if the connection
// is gone.
func (s *stream) acked() (uint64, error) {
	list := s.from.connections()
	for _, c := range list {
		if c.port == s.port {
			return c.acked, nil
		}
	}
	return 0, fmt.Errorf("no connection from port %s: there are %v", s.port, list)
}

// waitMoves waits until the same connection carries more than now, and returns how
// long that took.
func (s *stream) waitMoves(limit time.Duration) (time.Duration, error) {
	start := time.Now()
	before, err := s.acked()
	for now := before; err == nil && now == before; now, err = s.acked() {
		if time.Since(start) > limit {
			return limit, fmt.Errorf("the connection from port %s has carried no data for %v", s.port, limit)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start), err
}
