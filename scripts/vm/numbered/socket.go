package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// receiveBuffer is asked of the socket, in bytes, so that the receiver itself
// loses nothing.
const receiveBuffer = 8 << 20

// maxMessage is the longest UDP message, in bytes.
const maxMessage = 65507

// receive counts what arrives at an address until a signal, and writes the report.
func receive(address string, device []string, stop <-chan os.Signal, out io.Writer) error {
	conn, err := listen(address, device)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(receiveBuffer); err != nil {
		return err
	}
	fmt.Fprintln(out, "listening")
	go func() {
		<-stop
		_ = conn.SetReadDeadline(time.Now())
	}()
	var t tally
	buf := make([]byte, maxMessage)
	for {
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return json.NewEncoder(out).Encode(t.report)
		}
		if err != nil {
			return err
		}
		t.add(buf[:n])
	}
}

func listen(address string, device []string) (*net.UDPConn, error) {
	addr, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	if len(device) == 0 {
		return net.ListenUDP("udp", addr)
	}
	dev, err := net.InterfaceByName(device[0])
	if err != nil {
		return nil, err
	}
	return net.ListenMulticastUDP("udp", dev, addr)
}

// send sends messages; args are count, size and interval.
func send(address string, args []string) error {
	count, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	size, err := strconv.Atoi(args[1])
	if err != nil || size < numberLen || size > maxMessage {
		return fmt.Errorf("size %q: not between %d and %d", args[1], numberLen, maxMessage)
	}
	interval, err := time.ParseDuration(args[2])
	if err != nil {
		return fmt.Errorf("interval: %w", err)
	}
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	for n := range count {
		if _, err := conn.Write(encode(n, size)); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		time.Sleep(interval)
	}
	return nil
}
