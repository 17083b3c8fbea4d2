package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

// Poured is the report of a sender or a receiver of a TCP stream.
type Poured struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// stream copies a stream, and writes its report.
func stream(to io.Writer, from io.Reader, out io.Writer) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), from)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(Poured{n, hex.EncodeToString(sum.Sum(nil))})
}

// pour sends that many pseudo-random bytes to an address.
func pour(address, size string, out io.Writer) (err error) {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return stream(conn, io.LimitReader(rand.NewChaCha8([32]byte{}), n), out)
}

// drain receives a stream at an address until its end.
func drain(address string, out io.Writer) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(out, "listening")
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	return stream(io.Discard, conn, out)
}
