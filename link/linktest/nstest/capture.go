package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// captureLimit bounds how long dumpcap takes to start.
	captureLimit = 10 * time.Second
	// captureFlush is how long the kernel may hold packets back from dumpcap.
	captureFlush = time.Second
	// capturePoll is the interval at which a Capture looks at dumpcap.
	capturePoll = 10 * time.Millisecond
)

// Capture is a dumpcap on an interface, a witness that is independent of the program
// under test. (tcpdump fails to drop its privileges in a user namespace.)
type Capture struct {
	Path string // of a pcap file, complete after Stop

	tb  testing.TB
	cmd *exec.Cmd
	log *captureLog
}

// Capture records the packets that match a filter (pcap-filter(7)) on an interface of the
// namespace, in either direction, into the file path until Stop.
func (ns *Namespace) Capture(dev, filter, path string) *Capture {
	ns.tb.Helper()
	c := &Capture{Path: path, tb: ns.tb, log: &captureLog{}}
	c.cmd = ns.Command("dumpcap", "-q", "-P", "-i", dev, "-B", "64", "-f", filter, "-w", path)
	c.cmd.Stderr = c.log
	if err := c.cmd.Start(); err != nil {
		ns.tb.Fatalf("start dumpcap (Debian package tshark): %v", err)
	}
	for end := time.Now().Add(captureLimit); !strings.Contains(c.log.String(), "File: "); time.Sleep(capturePoll) {
		if time.Now().After(end) {
			ns.tb.Fatalf("dumpcap did not start within %v\n%s", captureLimit, c.log)
		}
	}
	return c
}

// complete matches dumpcap's report of a capture without losses.
var complete = regexp.MustCompile(`Packets received/dropped .*: \d+/0 `)

// Stop ends the capture. It fails the test if the capture lost a packet.
func (c *Capture) Stop() {
	c.tb.Helper()
	time.Sleep(captureFlush)
	// It reads nothing more after the signal, and sleeps only once it has read all.
	for end := time.Now().Add(captureLimit); !c.sleeps() && time.Now().Before(end); {
		time.Sleep(capturePoll)
	}
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		c.tb.Fatalf("stop dumpcap: %v", err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.tb.Fatalf("dumpcap: %v\n%s", err, c.log)
	}
	if !complete.MatchString(c.log.String()) {
		c.tb.Fatalf("the capture is incomplete:\n%s", c.log)
	}
}

// sleeps reports whether dumpcap waits for packets (proc_pid_stat(5), state).
func (c *Capture) sleeps() bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "S")
}

// captureLog is the output of dumpcap.
type captureLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *captureLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *captureLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
