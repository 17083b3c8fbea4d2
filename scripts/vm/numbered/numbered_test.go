package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTally(t *testing.T) {
	damaged := encode(9, 20)
	damaged[15] ^= 1
	var tally tally
	for _, m := range [][]byte{
		encode(0, 8), encode(1, 1400), encode(3, 20), encode(2, 20), encode(3, 20), damaged, []byte("short"),
	} {
		tally.add(m)
	}
	if want := (Report{Distinct: 4, Again: 1, Reordered: 1, Damaged: 2}); tally.report != want {
		t.Errorf("%+v, want %+v", tally.report, want)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range []string{
		"", "send", "send 127.0.0.1:9 1 7 0s", "send 127.0.0.1:9 1 65508 0s", "send 127.0.0.1:9 x 8 0s",
		"send 127.0.0.1:9 1 8 1", "send 127.0.0.1 1 8 0s", "receive", "receive 127.0.0.1:9", "receive a 1 c d", "receive 127.0.0.1:9 x", "receive 127.0.0.1 1", "receive 224.0.0.251:9 1 nowhere0",
		"drain", "drain 127.0.0.1", "pour 127.0.0.1:9", "pour 127.0.0.1:9 x", "pour 127.0.0.1 1",
	} {
		if err := run(strings.Fields(args)); err == nil {
			t.Errorf("numbered %s: no error", args)
		}
	}
	if err := run(nil); !errors.Is(err, errUsage) {
		t.Errorf("no arguments: %v, want %v", err, errUsage)
	}
}

// The receiver counts messages until the signal, and afterwards while messages are
// missing.
func TestSendAndReceive(t *testing.T) {
	address := freeAddress(t)
	stop, done := make(chan os.Signal, 1), make(chan error)
	out := &listening{begun: make(chan struct{})}
	go func() { done <- receive(address, 40, nil, stop, out) }()
	<-out.begun
	for range 2 {
		begin := make(chan os.Signal, 1)
		begin <- syscall.SIGUSR1
		if err := send(address, []string{"20", "64", "1ms"}, begin, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // far longer than loopback needs
	stop <- syscall.SIGTERM
	sendLate(t, address)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(out.report.Bytes(), &got); err != nil || got != (Report{Distinct: 40, Again: 20}) {
		t.Errorf("report %+v, %v, want 40 distinct numbers and 20 again", got, err)
	}
}

// sendLate sends the messages 20 to 39.
func sendLate(t *testing.T, address string) {
	t.Helper()
	time.Sleep(100 * time.Millisecond) // the signal comes first
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for n := range uint64(20) {
		if _, err := conn.Write(encode(20+n, 64)); err != nil {
			t.Fatal(err)
		}
	}
}

// freeAddress returns an unused address of the loopback.
func freeAddress(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().String()
}

// listening separates the receiver's greeting from its report.
type listening struct {
	begun  chan struct{}
	report bytes.Buffer
}

func (l *listening) Write(p []byte) (int, error) {
	if string(p) == "listening\n" {
		close(l.begun)
		return len(p), nil
	}
	return l.report.Write(p)
}
