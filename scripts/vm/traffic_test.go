package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ping sends echo requests of a payload's size in bytes that may not be
// fragmented; a lost one fails the test.
func ping(tb testing.TB, from machine, to string, count, size int) {
	tb.Helper()
	out := from.Run("ping", "-n", "-q", "-i", "0.1", "-M", "do", "-c", fmt.Sprint(count), "-s", fmt.Sprint(size), to)
	if !strings.Contains(out, " 0% packet loss") {
		tb.Errorf("ping %s with %d bytes:\n%s", to, size, out)
	}
}

// load is what iperf3 measured.
type load struct {
	Mbps      float64 // received
	Resent    int     // TCP segments
	Lost, All int     // UDP datagrams
}

func (l load) String() string {
	if l.All > 0 {
		return fmt.Sprintf("UDP %.1f Mbit/s, %d of %d datagrams lost", l.Mbps, l.Lost, l.All)
	}
	return fmt.Sprintf("TCP %.1f Mbit/s, %d segments sent again", l.Mbps, l.Resent)
}

// loadTime is how long iperf3 sends.
const loadTime = 3 * time.Second

// iperf runs iperf3 between two machines, to an address of the second one, with
// further arguments for the client.
func iperf(tb testing.TB, from, to machine, address string, args ...string) load {
	tb.Helper()
	server := to.start("iperf3", "--server", "--one-off", "--forceflush")
	waitSays(tb, server, "Server listening")
	args = append([]string{"--client", address, "--json", "--time", fmt.Sprint(loadTime.Seconds())}, args...)
	out := from.Run("iperf3", args...)
	awaitExit(tb, server)
	return parseLoad(tb, out)
}

// parseLoad reads the sums of iperf3's report.
func parseLoad(tb testing.TB, report string) load {
	tb.Helper()
	type sum struct {
		BitsPerSecond float64 `json:"bits_per_second"`
		Retransmits   int     `json:"retransmits"`
		LostPackets   int     `json:"lost_packets"`
		Packets       int     `json:"packets"`
	}
	var r struct {
		End struct {
			Sum         sum `json:"sum"` // of UDP
			SumSent     sum `json:"sum_sent"`
			SumReceived sum `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		tb.Fatalf("iperf3 says %q: %v", report, err)
	}
	received := max(r.End.Sum.BitsPerSecond, r.End.SumReceived.BitsPerSecond)
	return load{received / 1e6, r.End.SumSent.Retransmits, r.End.Sum.LostPackets, r.End.Sum.Packets}
}

// tally is the report of the program numbered, beside what was sent.
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

const (
	numberedPort = "5300"
	// lastMessage is how long the last message may be under way.
	lastMessage = time.Second
)

// count sends numbered messages of a size in bytes, one each interval, from one
// machine to an address and counts those that arrive at another one; device is
// where that joins a group, or empty.
func count(tb testing.TB, from, to machine, address, device string, messages, size int, interval time.Duration) tally {
	tb.Helper()
	at := net.JoinHostPort(address, numberedPort)
	args := []string{"receive", at}
	if device != "" {
		args = append(args, device)
	}
	receiver := to.start("numbered", args...)
	waitSays(tb, receiver, "listening")
	from.Run("numbered", "send", at, fmt.Sprint(messages), fmt.Sprint(size), interval.String())
	time.Sleep(lastMessage)
	receiver.Signal(syscall.SIGTERM)
	awaitExit(tb, receiver)
	c := tally{Sent: messages}
	_, report, _ := strings.Cut(receiver.Stdout(), "\n")
	if err := json.Unmarshal([]byte(report), &c); err != nil {
		tb.Fatalf("the receiver says %q: %v\n%s", receiver.Stdout(), err, receiver.Stderr())
	}
	return c
}

// waitSays waits until a process has written a text to its standard output.
func waitSays(tb testing.TB, p process, text string) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("it says %q", text), func() bool {
		return strings.Contains(p.Stdout(), text)
	})
}
