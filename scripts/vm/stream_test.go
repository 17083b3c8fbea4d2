package vm

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// streamRate leaves a guest the time for everything else.
	streamRate = "4M"
	// streamLife is the longest duration that iperf3 accepts, in seconds.
	streamLife = "86400"
	// streamBegun distinguishes the data connection: it has carried this many bytes,
	// which the control connection never does.
	streamBegun = 256 << 10
	// streamRests is how long a connection must deliver nothing to count as idle.
	streamRests = 300 * time.Millisecond
)

// stream is one TCP connection of iperf3 that lasts as long as the test.
type stream struct {
	tb     testing.TB
	to     *endpoint
	sender process
	port   string // of the sender; identifies the connection
}

// startStream starts to send from one endpoint to another.
func startStream(tb testing.TB, from, to *endpoint) *stream {
	tb.Helper()
	waitPrints(tb, to.start("iperf3", "--server", "--forceflush"), "Server listening")
	sender := from.start("iperf3", "--client", to.ip4(), "--time", streamLife, "--bitrate", streamRate, "--interval", "0")
	s := &stream{tb: tb, to: to, sender: sender}
	eventually(tb, "iperf3 sends", func() bool {
		for port, n := range s.received() {
			if n > streamBegun {
				s.port = port
			}
		}
		return s.port != ""
	})
	return s
}

var tcpReceived = regexp.MustCompile(`^ESTAB\s+\d+\s+\d+\s+\S+:5201\s+\S+:(\d+)\s.*\sbytes_received:(\d+)`)

// received returns how many bytes each connection of iperf3 has delivered, by the
// sender's port.
func (s *stream) received() map[string]uint64 {
	s.tb.Helper()
	all := map[string]uint64{}
	for line := range strings.Lines(s.to.Run("ss", "-HOtin", "sport = 5201")) {
		if m := tcpReceived.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[2], 10, 64)
			if err != nil {
				s.tb.Fatalf("ss: %v", err)
			}
			all[m[1]] = n
		}
	}
	return all
}

// pause stops the sender, and waits until all that it sent has arrived.
func (s *stream) pause() {
	s.tb.Helper()
	s.sender.Signal(syscall.SIGSTOP)
	before := uint64(0)
	eventually(s.tb, "the connection is idle", func() bool {
		time.Sleep(streamRests)
		now := s.received()[s.port]
		rests := now == before
		before = now
		return rests
	})
}

func (s *stream) resume() {
	s.tb.Helper()
	s.sender.Signal(syscall.SIGCONT)
}

// waitMoves waits until the same connection delivers more data, and returns how long
// that took.
func (s *stream) waitMoves() time.Duration {
	s.tb.Helper()
	start, before := time.Now(), s.received()[s.port]
	eventually(s.tb, fmt.Sprintf("the connection from port %s moves", s.port), func() bool {
		return s.received()[s.port] > before
	})
	return time.Since(start)
}
