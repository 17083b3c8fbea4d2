package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// transferLimit is ten times as long as a file of the long form takes on a busy machine.
const transferLimit = 20 * time.Minute

// file is random bytes on disk.
type file struct {
	path string
	size int64
}

// newFile writes a file; the same seed gives the same file.
func newFile(tb testing.TB, seed byte, size int64) file {
	tb.Helper()
	f := file{filepath.Join(tb.TempDir(), fmt.Sprint("file", seed)), size}
	disk, err := os.Create(f.path)
	if err != nil {
		tb.Fatal(err)
	}
	defer disk.Close()
	if _, err := io.CopyN(disk, rand.NewChaCha8([32]byte{seed}), size); err != nil {
		tb.Fatalf("write %s: %v", f.path, err)
	}
	return f
}

// transfer is a TCP connection that carries the first bytes of a file.
type transfer struct {
	file
	size     int64
	from, to *host
	addr     string // of the receiver
	sent     [sha256.Size]byte
}

// run carries the file and compares the checksums. The kernel sends straight from the file's
// pages (sendfile), in frames as large as possible.
func (x *transfer) run() (took time.Duration, err error) {
	start := time.Now()
	listener, err := x.to.listenTCP(x.addr)
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	sent := make(chan error, 1)
	go func() { sent <- x.send(listener.Addr().String()) }()
	if err := x.receive(listener, sent); err != nil {
		return 0, err
	}
	return time.Since(start), <-sent
}

func (x *transfer) send(to string) error {
	disk, err := os.Open(x.path)
	if err != nil {
		return err
	}
	defer disk.Close()
	var conn net.Conn
	x.from.Do(func() { conn, err = (&net.Dialer{Timeout: repairLimit}).Dial("tcp", to) })
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(transferLimit))
	if _, err := io.Copy(conn, io.LimitReader(disk, x.size)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func (x *transfer) receive(listener net.Listener, sent <-chan error) error {
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(repairLimit))
	conn, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("accept: %w (the sender: %w)", err, <-sent)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(transferLimit))
	sum := sha256.New()
	n, err := io.Copy(sum, conn)
	switch {
	case err != nil:
		return fmt.Errorf("receive: %w, after %d bytes", err, n)
	case n != x.size:
		return fmt.Errorf("received %d bytes, want %d", n, x.size)
	case [sha256.Size]byte(sum.Sum(nil)) != x.sent:
		return fmt.Errorf("the checksum of the %d bytes that arrived is %x, want %x", n, sum.Sum(nil), x.sent)
	}
	return nil
}

// listenTCP listens at an address of the host, on any port.
func (h *host) listenTCP(at string) (listener net.Listener, err error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	h.Do(func() { listener, err = c.Listen(h.tb.Context(), "tcp", net.JoinHostPort(at, "0")) })
	return listener, err
}

// sumOf returns the checksum of the first bytes of a file.
func (f file) sumOf(tb testing.TB, size int64) (sum [sha256.Size]byte) {
	tb.Helper()
	disk, err := os.Open(f.path)
	if err != nil {
		tb.Fatal(err)
	}
	defer disk.Close()
	hash := sha256.New()
	if _, err := io.CopyN(hash, disk, size); err != nil {
		tb.Fatal(err)
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// transferFiles carries a file each way at the same time, each by one connection over IPv4, and
// beside them parts of the files: by one connection each way over IPv6, and two over IPv4.
func (p *relayed) transferFiles(t *testing.T, files [2]file) {
	var all sync.WaitGroup
	start := time.Now()
	for i, f := range files {
		whole, part := f.sumOf(t, f.size), f.sumOf(t, f.size/8)
		from, to := p.hosts[i], p.hosts[1-i]
		for _, x := range []transfer{
			{f, f.size, from, to, to.ip4(), whole},
			{f, f.size / 8, from, to, to.ip6(), part},
			{f, f.size / 8, from, to, to.ip4(), part},
			{f, f.size / 8, from, to, to.ip4(), part},
		} {
			all.Go(func() {
				took, err := x.run()
				if err != nil {
					t.Errorf("%d bytes from host %d to %s: %v", x.size, i, x.addr, err)
				} else {
					t.Logf("%10d bytes from host %d to %-10s in %v, %.2f Gb/s", x.size, i, x.addr, took.Round(time.Millisecond), float64(x.size)*8/float64(took.Nanoseconds()))
				}
			})
		}
	}
	all.Wait()
	t.Logf("all files took %v", time.Since(start).Round(time.Millisecond))
}
