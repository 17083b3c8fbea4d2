package link_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// A TAP with several queues reads frames of the host from all of them, each frame once, and writes
// through each. Its own queues are not foreign; those of others are, and all are detached by Close.
func TestQueues(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	several := spec("ib0")
	several.Queues = 4
	tap, _ := openTAP(t, several)
	queues := tap.Queues()
	if len(queues) != several.Queues {
		t.Fatalf("%d queues", len(queues))
	}
	h := newHost(t)
	h.SetUp(true)
	must(t, tap.SetCarrier(true))

	const frames = 64
	type got struct {
		queue int
		frame []byte
	}
	read := make(chan got, frames)
	for i, q := range queues {
		go func() {
			buf, size := make([]byte, link.MaxFrame), make([]int, 1)
			for {
				n, err := q.ReadBatch([][]byte{buf}, size)
				if err != nil {
					return
				}
				if n == 1 {
					read <- got{i, bytes.Clone(buf[link.HeaderLen:size[0]])}
				}
			}
		}()
	}
	for i := range frames {
		h.Send(testFrame(byte(i)))
	}
	seen, used := map[byte]bool{}, map[int]bool{}
	for limit := time.After(20 * time.Second); len(seen) < frames; {
		select {
		case g := <-read:
			if len(g.frame) <= numberAt || binary.BigEndian.Uint16(g.frame[36:]) != testPort {
				continue // of the kernel
			}
			n := g.frame[numberAt]
			if seen[n] {
				t.Errorf("frame %d was read twice", n)
			}
			seen[n], used[g.queue] = true, true
		case <-limit:
			t.Fatalf("only %d of %d frames were read", len(seen), frames)
		}
	}
	if len(used) < 2 {
		t.Errorf("all frames came through the queue %v", used)
	}
	before := tap.Counters()
	for i, q := range queues {
		frame := append(make([]byte, link.HeaderLen), testFrame(byte(i))...)
		accepted := make([]bool, 1)
		if n, err := q.WriteVectors([][][]byte{{frame}}, accepted); n != 1 || err != nil {
			t.Errorf("queue %d: write: %d, %v", i, n, err)
		}
	}
	if n := tap.Counters().Written - before.Written; n != uint64(len(queues)) {
		t.Errorf("%d frames written, want %d", n, len(queues))
	}
	wantForeign := func(n int) {
		t.Helper()
		found, err := tap.Inspect()
		must(t, err)
		s, err := tap.State()
		must(t, err)
		if found.Foreign != n || s.Foreign != n {
			t.Errorf("%d and %d foreign queues, want %d", found.Foreign, s.Foreign, n)
		}
	}
	wantForeign(0)
	other := h.Attach()
	wantForeign(1)
	other.Detach()
	wantForeign(0)

	must(t, tap.Close())
	one, adopted := openTAP(t, spec("ib0"))
	if !adopted || len(one.Queues()) != 1 {
		t.Errorf("adopted %v, with %d queues", adopted, len(one.Queues()))
	}
	must(t, one.Close())
	eight := spec("ib0")
	eight.Queues = link.MaxQueues
	if again, adopted := openTAP(t, eight); !adopted || len(again.Queues()) != link.MaxQueues {
		t.Errorf("adopted %v, with %d queues", adopted, len(again.Queues()))
	}
}

// testPort is the UDP destination port of test frames.
const testPort = 40000

// testFrame returns a numbered frame of a flow of its own: a UDP datagram from another port.
func testFrame(n byte) []byte {
	frame := make([]byte, 60)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1, 1, 0x08, 0x00})
	copy(frame[14:], []byte{0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2})
	binary.BigEndian.PutUint16(frame[34:], testPort+1+uint16(n))
	binary.BigEndian.PutUint16(frame[36:], testPort)
	binary.BigEndian.PutUint16(frame[38:], 26)
	frame[numberAt] = n
	return frame
}

const numberAt = 42
