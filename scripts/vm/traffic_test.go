package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
)

// ping sends echo requests with a payload of size bytes that may not be fragmented; a lost one fails the test.
func ping(tb testing.TB, from machine, to string, count, size int) {
	tb.Helper()
	before := nstest.EchoReplies(from.Run)
	from.Run("ping", "-n", "-q", "-i", "0.1", "-M", "do", "-c", fmt.Sprint(count), "-s", fmt.Sprint(size), to)
	eventually(tb, fmt.Sprintf("%d replies of %s with %d bytes", count, to, size), func() bool {
		return nstest.EchoReplies(from.Run) >= before+count
	})
}

// loadTime is how long iperf3 sends.
const loadTime = 3 * time.Second

// iperf runs iperf3 between two machines, to an address of the second one, with
// further arguments for the client.
func iperf(tb testing.TB, from, to machine, address string, args ...string) guest.Load {
	tb.Helper()
	server := to.start("iperf3", "--server", "--one-off", "--forceflush")
	waitPrints(tb, server, "Server listening")
	args = append([]string{"--client", address, "--json", "--time", fmt.Sprint(loadTime.Seconds())}, args...)
	out := from.Run("iperf3", args...)
	awaitExit(tb, server)
	return guest.ParseLoad(tb, out)
}

// tally is the report of the program numbered, with the number of messages
// sent.
type tally struct {
	Sent      int
	Distinct  int `json:"distinct"`
	Again     int `json:"again"`
	Reordered int `json:"reordered"`
	Damaged   int `json:"damaged"`
}

// complete reports whether every message came, once and undamaged.
func (c tally) complete() bool {
	return c.Distinct == c.Sent && c.Again == 0 && c.Damaged == 0
}

// firstPort is the port of the first flow; each flow has its own port.
const firstPort = 5300

// lastMessage is how long count waits for duplicates; the program itself waits longer
// for missing messages.
const lastMessage = time.Second

// flow sends numbered messages from one machine to an address of another. If the
// address is a group, the receiver joins it on device; otherwise device is empty.
type flow struct {
	from, to        machine
	address, device string
}

// burst is a number of messages of a size in bytes, sent one per interval.
type burst struct {
	messages, size int
	interval       time.Duration
}

// count sends a burst on every flow at the same time, and counts what arrives.
func count(tb testing.TB, flows []flow, b burst) []tally {
	tb.Helper()
	receivers := make([]process, len(flows))
	for i, f := range flows {
		receivers[i] = f.receive(i, b.messages)
	}
	for _, r := range receivers {
		waitPrints(tb, r, "listening")
	}
	senders := make([]process, len(flows))
	for i, f := range flows {
		senders[i] = f.send(i, b)
	}
	for _, s := range senders {
		waitPrints(tb, s, "ready")
	}
	for _, s := range senders {
		s.Signal(syscall.SIGUSR1)
	}
	for _, s := range senders {
		awaitExit(tb, s)
		if s.Stderr() != "" {
			tb.Errorf("a sender failed: %q", s.Stderr())
		}
	}
	time.Sleep(lastMessage)
	tallies := make([]tally, len(flows))
	for i, r := range receivers {
		tallies[i] = tally{Sent: b.messages}
		tallies[i].read(tb, r)
	}
	return tallies
}

// at returns the address and port of the flow with a number.
func (f flow) at(number int) string {
	return net.JoinHostPort(f.address, fmt.Sprint(firstPort+number))
}

func (f flow) receive(number, messages int) process {
	args := []string{"receive", f.at(number), fmt.Sprint(messages)}
	if f.device != "" {
		args = append(args, f.device)
	}
	return f.to.start("numbered", args...)
}

// send starts a sender of a burst, which waits for SIGUSR1.
func (f flow) send(number int, b burst) process {
	return f.from.start("numbered", "send", f.at(number), fmt.Sprint(b.messages), fmt.Sprint(b.size), b.interval.String())
}

// read ends a receiver and reads its report.
func (c *tally) read(tb testing.TB, receiver process) {
	tb.Helper()
	receiver.Signal(syscall.SIGTERM)
	awaitExit(tb, receiver)
	_, report, _ := strings.Cut(receiver.Stdout(), "\n")
	if err := json.Unmarshal([]byte(report), c); err != nil {
		tb.Fatalf("parse the receiver's report %q: %v\n%s", receiver.Stdout(), err, receiver.Stderr())
	}
}

// waitPrints waits until a process has written a text to its standard output.
func waitPrints(tb testing.TB, p process, text string) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("it says %q", text), func() bool {
		return strings.Contains(p.Stdout(), text)
	})
}
