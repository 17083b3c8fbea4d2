package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of the socket's buffer, in bytes. It prevents losses in
// the receiver itself: it may wait a second for its processor, and the messages of
// a second need many times the size that the kernel grants without CAP_NET_ADMIN.
const receiveBuffer = 8 << 20

// maxMessage is the longest UDP message, in bytes.
const maxMessage = 65507

// lastWait is how long a receiver waits for missing messages after the signal to
// end, because messages delayed by a busy processor are not lost.
const lastWait = 5 * time.Second

// receive counts the messages that arrive at an address until a signal. Then it
// continues while it has fewer than count messages and more arrive, and writes the
// report.
func receive(address string, count int, device []string, stop <-chan os.Signal, out io.Writer) error {
	conn, err := listen(address, device)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := enlarge(conn); err != nil {
		return err
	}
	fmt.Fprintln(out, "listening")
	go func() {
		<-stop
		_ = conn.SetReadDeadline(time.Now())
	}()
	var t tally
	err = t.collect(conn, math.MaxInt)
	for last := -1; err == nil && last < t.report.Distinct && t.report.Distinct < count; {
		last = t.report.Distinct
		_ = conn.SetReadDeadline(time.Now().Add(lastWait))
		err = t.collect(conn, count)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(t.report)
}

// collect counts messages until the socket's deadline, or until it has enough.
func (t *tally) collect(conn net.Conn, enough int) error {
	buf := make([]byte, maxMessage)
	for t.report.Distinct < enough {
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		t.add(buf[:n])
	}
	return nil
}

// enlarge sets the size of a socket's buffer, beyond the limit net.core.rmem_max if
// the process has CAP_NET_ADMIN.
func enlarge(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var forced error
	err = raw.Control(func(fd uintptr) {
		forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	if err != nil || forced == nil {
		return err
	}
	return conn.SetReadBuffer(receiveBuffer)
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

// send sends messages after a signal; args are count, size and interval.
func send(address string, args []string, begin <-chan os.Signal, out io.Writer) error {
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
	fmt.Fprintln(out, "ready")
	<-begin
	for n := range count {
		if _, err := conn.Write(encode(n, size)); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		time.Sleep(interval)
	}
	return nil
}
