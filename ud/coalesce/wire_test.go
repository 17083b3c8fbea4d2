package coalesce

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/vnet"
)

// wire joins the TAPs of two namespaces as two daemons would: large frames of a host are
// segmented, and joined again for the other one.
type wire struct {
	hosts [2]*nstest.Namespace
	taps  [2]tap
	pumps sync.WaitGroup

	mu    sync.Mutex
	stats [2]wireStats // by the TAP that was read
}

type wireStats struct{ read, segments, written int }

func newWire(t *testing.T) *wire {
	w := &wire{}
	for i := range w.taps {
		w.hosts[i] = nstest.New(t)
		w.taps[i] = openTAP(t, w.hosts[i], byte(i+1))
		if got, err := w.taps[i].SetOffloads(link.AllOffloads); err != nil || got&link.OffloadTSO != link.OffloadTSO {
			t.Fatalf("SetOffloads = %v, %v; want all", got, err)
		}
		w.hosts[i].Run("ip", "address", "add", fmt.Sprintf("10.0.0.%d/24", i+1), "dev", "ib0")
		w.hosts[i].AddIPv6("ib0", fmt.Sprintf("fd00::%d/64", i+1))
	}
	for i := range w.taps {
		w.pumps.Go(func() { w.pump(t, i) })
	}
	t.Cleanup(func() {
		for _, tap := range w.taps {
			must(t, tap.Close())
		}
		w.pumps.Wait()
	})
	return w
}

// pump carries frames from the i-th TAP to the other one.
func (w *wire) pump(t *testing.T, i int) {
	const reads = 4
	bufs, sizes := make([][]byte, reads), make([]int, reads)
	for k := range bufs {
		bufs[k] = make([]byte, link.MaxFrame)
	}
	c := New(batch, w.taps[i].udp)
	for {
		n, err := w.taps[i].ReadBatch(bufs, sizes)
		if err != nil {
			return
		}
		var segments [][]byte
		for k := range n {
			segments = append(segments, onTheWire(t, bufs[k][:sizes[k]])...)
		}
		written := 0
		for begin := 0; begin < len(segments); begin += batch {
			part := segments[begin:min(begin+batch, len(segments))]
			out := c.Join(part, oneSender(part))
			if n, err := w.taps[1-i].WriteVectors(out, make([]bool, batch)); err == nil && n != len(out) {
				t.Errorf("the kernel took %d of %d frames", n, len(out))
			}
			written += len(out)
		}
		w.mu.Lock()
		s := &w.stats[i]
		s.read, s.segments, s.written = s.read+n, s.segments+len(segments), s.written+written
		w.mu.Unlock()
	}
}

// onTheWire returns the complete frames into which a frame of a host is cut, each with a
// virtio header without requests.
func onTheWire(t *testing.T, frame []byte) (out [][]byte) {
	h, err := vnet.Parse(frame)
	if err != nil {
		t.Error(err)
		return nil
	}
	headers, err := h.Check(frame[vnet.HeaderLen:])
	if err != nil {
		t.Errorf("%v: %+v % x", err, h, frame[:min(100, len(frame))])
		return nil
	}
	if headers == 0 {
		h.Complete(frame[vnet.HeaderLen:])
		frame[1] = 0
	} else {
		h.HdrLen = uint16(headers)
		h.Put(frame)
	}
	for _, f := range cut(frame) {
		if len(f) > mtu+14 {
			t.Errorf("a segment of %d bytes", len(f))
		}
		out = append(out, append(make([]byte, vnet.HeaderLen), f...))
	}
	return out
}

// Streams and datagrams arrive unchanged when the hosts leave checksums and segmentation to
// this side and get joined frames.
func TestTrafficOfTwoHosts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	w := newWire(t)
	for _, addr := range []string{"10.0.0.2", "[fd00::2]"} {
		t.Run("TCP to "+addr, func(t *testing.T) { w.streams(t, addr+":80") })
		t.Run("UDP to "+addr, func(t *testing.T) { w.trains(t, addr+":53") })
	}
}

// streams sends megabytes in both directions of a connection.
func (w *wire) streams(t *testing.T, addr string) {
	const size = 8 << 20
	var listener net.Listener
	w.hosts[1].Do(func() {
		var err error
		listener, err = net.Listen("tcp", addr)
		must(t, err)
	})
	defer listener.Close()
	before := w.now()
	var conns [2]net.Conn
	w.hosts[0].Do(func() {
		var err error
		conns[0], err = net.DialTimeout("tcp", addr, patience)
		must(t, err)
	})
	var err error
	conns[1], err = listener.Accept()
	must(t, err)
	text := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(text)
	want := sha256.Sum256(text)
	var all sync.WaitGroup
	for _, conn := range conns {
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		all.Go(func() {
			if _, err := conn.Write(text); err != nil {
				t.Errorf("write: %v", err)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
		})
		all.Go(func() {
			sum := sha256.New()
			if n, err := io.Copy(sum, conn); n != size || err != nil || !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Errorf("read %d bytes, %v; want %d, the same", n, err, size)
			}
		})
	}
	all.Wait()
	for _, conn := range conns {
		conn.Close()
	}
	w.requireFewer(t, before, 3)
}

// trains sends datagrams by UDP_SEGMENT.
func (w *wire) trains(t *testing.T, addr string) {
	var server net.PacketConn
	var client net.Conn
	w.hosts[1].Do(func() {
		var err error
		server, err = net.ListenPacket("udp", addr)
		must(t, err)
	})
	defer server.Close()
	w.hosts[0].Do(func() {
		var err error
		client, err = net.Dial("udp", addr)
		must(t, err)
	})
	defer client.Close()
	conn, err := client.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, conn.Control(func(fd uintptr) {
		must(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 700))
	}))
	before := w.now()
	buf := make([]byte, 1<<16)
	must(t, server.SetReadDeadline(time.Now().Add(patience)))
	for round := range 20 {
		train := bytes.Repeat([]byte{byte(round)}, 30*700+123)
		if _, err := client.Write(train); err != nil {
			t.Fatalf("write: %v", err)
		}
		for got := 0; got < len(train); {
			n, _, err := server.ReadFrom(buf)
			if err != nil || n != min(700, len(train)-got) || !bytes.Equal(buf[:n], train[got:got+n]) {
				t.Fatalf("round %d, at byte %d: %d bytes, %v", round, got, n, err)
			}
			got += n
		}
	}
	if w.taps[0].udp {
		w.requireFewer(t, before, 10)
	}
}

func (w *wire) now() [2]wireStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// requireFewer checks that the frames of the first host were cut and joined: there were more
// segments than frames on both sides, by a factor.
func (w *wire) requireFewer(t *testing.T, before [2]wireStats, factor int) {
	t.Helper()
	after := w.now()
	read, segments, written := after[0].read-before[0].read, after[0].segments-before[0].segments, after[0].written-before[0].written
	t.Logf("%d frames read, %d segments, %d frames written", read, segments, written)
	if segments < factor*read || segments < factor*written {
		t.Errorf("%d frames read, %d segments, %d frames written; want %d times as many segments", read, segments, written, factor)
	}
}
