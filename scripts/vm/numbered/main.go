// Numbered sends numbered UDP messages, or counts those that arrive. A missing
// number reveals a message that a device dropped silently. It also sends and receives TCP
// streams.
//
//	numbered receive ADDRESS:PORT COUNT [INTERFACE]
//	numbered send ADDRESS:PORT COUNT SIZE INTERVAL
//	numbered drain ADDRESS:PORT
//	numbered pour ADDRESS:PORT BYTES
//
// The receiver prints "listening", counts messages until SIGTERM, waits for late
// messages while it has fewer than COUNT, and prints a report as JSON. If INTERFACE
// is given, ADDRESS is a group, which the receiver joins there. The sender prints
// "ready", waits for SIGUSR1, and sends COUNT messages of SIZE bytes (at least 8),
// one per INTERVAL, such as 1ms, with numbers from 0.
//
// A message consists of its number, 8 bytes, big-endian, and bytes of value 0xa5.
//
// drain prints "listening" and receives one connection until its end; pour sends that many
// pseudo-random bytes. Both print the number of bytes and their SHA-256 as JSON.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

var errUsage = errors.New("usage: numbered receive ADDRESS:PORT COUNT [INTERFACE]" +
	" | send ADDRESS:PORT COUNT SIZE INTERVAL" +
	" | drain ADDRESS:PORT" +
	" | pour ADDRESS:PORT BYTES")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "numbered:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && len(args) <= 4 && args[0] == "receive":
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return fmt.Errorf("count: %w", err)
		}
		return receive(args[1], count, args[3:], notify(syscall.SIGTERM), os.Stdout)
	case len(args) == 5 && args[0] == "send":
		return send(args[1], args[2:], notify(syscall.SIGUSR1), os.Stdout)
	case len(args) == 2 && args[0] == "drain":
		return drain(args[1], os.Stdout)
	case len(args) == 3 && args[0] == "pour":
		return pour(args[1], args[2], os.Stdout)
	}
	return errUsage
}

// notify returns a channel that gets a value after a signal.
func notify(sig os.Signal) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, sig)
	return c
}
