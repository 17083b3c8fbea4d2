package record

import (
	"errors"
	"testing"

	"ipoibd/hca"
)

// filter ignores frames whose first byte behind the Ethernet header is its value.
type filter byte

func (f filter) Run(frame []byte) (int, error) {
	switch {
	case len(frame) <= etherLen:
		return 0, errors.New("too short")
	case frame[etherLen] == byte(f):
		return 0, nil
	}
	return 1, nil
}

func frameOf(first byte, n int) []byte {
	f := make([]byte, etherLen+n)
	f[etherLen] = first
	return withVirtio(f)
}

func count(r *Recorder) (n int, lost uint64) {
	for rec := r.Peek(); rec != nil; rec = r.Peek() {
		n++
		lost += rec.Lost
		r.Release()
	}
	return n, lost
}

// Every packet is either recorded or counted as lost, and the next record says how many were
// lost before it.
func TestFullRingLosesAndCounts(t *testing.T) {
	for name, f := range map[string]Filter{"no filter": nil, "filter": filter(9)} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(&self, func(c *Config) { c.Filter = f })
			const frames = 5000
			for range frames {
				r.FromHost(at, frameOf(1, 1000))
			}
			if f != nil {
				r.FromHost(at, frameOf(9, 1000)) // ignored, not lost
			}
			n, before := count(r)
			if n == 0 || n == frames || before != 0 || r.Lost(Frame) != uint64(frames-n) || r.Lost(Message) != 0 {
				t.Errorf("%d recorded, %d lost, %d before a record", n, r.Lost(Frame), before)
			}
			r.FromHost(at, frameOf(1, 1000))
			r.FromHost(at, frameOf(1, 1000))
			if again, before := count(r); again != 2 || before != uint64(frames-n) {
				t.Errorf("then %d records, %d lost before them, want %d", again, before, frames-n)
			}
		})
	}
}

// A large send counts as its packets.
func TestLostPacketsOfLargeSends(t *testing.T) {
	r := newRecorder(&self, nil)
	large := tcp(60000, true)
	wr := sendTo(hca.AHSpec{Global: true, DGID: gidB}, 1)
	wr.LSO = hca.LSO{Header: large[:44], MSS: 1000}
	const sends = 20
	for range sends {
		r.Sent(at, wr, large)
	}
	if got := uint64(len(packets(t, r, RoCE))); got == 0 || got+r.Lost(Message) != sends*60 || r.Lost(Message) == 0 {
		t.Errorf("%d packets and %d lost, want %d", got, r.Lost(Message), sends*60)
	}
}

// A recorder takes only the kinds and directions that it is configured for.
func TestRecorderSelects(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		self *Origin
		want int
	}{
		{"all", Config{Frames: true, Messages: true, In: true, Out: true}, &self, 4},
		{"frames", Config{Frames: true, In: true, Out: true}, &self, 2},
		{"messages", Config{Messages: true, In: true, Out: true}, &self, 2},
		{"in", Config{Frames: true, Messages: true, In: true}, &self, 2},
		{"out", Config{Frames: true, Messages: true, Out: true}, &self, 2},
		{"no address yet", Config{Frames: true, Messages: true, In: true, Out: true}, nil, 2},
	} {
		woken := 0
		tt.cfg.Origin, tt.cfg.Wake = func() *Origin { return tt.self }, func() { woken++ }
		r := NewRecorder(tt.cfg)
		r.Done()
		r.FromHost(at, frameOf(1, 10))
		r.ToHost(at, [][]byte{frameOf(1, 10)})
		r.Sent(at, sendTo(hca.AHSpec{}, 1), message)
		buf := area("192.0.2.2", "192.0.2.1", 0, 64, 1, message)
		r.Received(at, received(buf), buf)
		r.Done()
		if n, _ := count(r); n != tt.want || woken != 1 {
			t.Errorf("%s: %d records, woken %d times, want %d and 1", tt.name, n, woken, tt.want)
		}
	}
}

// The controlled Q_Key of a work request stands for that of the queue pair.
func TestControlledQKey(t *testing.T) {
	r := newRecorder(&self, nil)
	wr := sendTo(hca.AHSpec{Global: true, DGID: gidB}, 1)
	wr.UD.QKey = hca.QKeyControlled
	r.Sent(at, wr, message)
	if got := packets(t, r, RoCE)[0][28+12:][:4]; string(got) != "\x00\x00\x0b\x1b" {
		t.Errorf("Q_Key %x", got)
	}
}

// A filter sees a message as an Ethernet frame.
func TestFilterSeesMessages(t *testing.T) {
	r := newRecorder(&self, func(c *Config) { c.Filter = filter(1) })
	r.Sent(at, sendTo(hca.AHSpec{}, 1), message)
	r.Sent(at, sendTo(hca.AHSpec{}, 1), unhex("0800 0000 02"))
	if n, _ := count(r); n != 1 || r.Lost(Message) != 0 {
		t.Errorf("%d records, %d lost", n, r.Lost(Message))
	}
}

func TestNoAllocation(t *testing.T) {
	r := newRecorder(&self, func(c *Config) { c.Filter = filter(9) })
	frame, large := frameOf(1, 1500), tcp(60000, true)
	pieces := [][]byte{frame, frame}
	wr := sendTo(hca.AHSpec{Global: true, DGID: gidB}, 1)
	wr.LSO = hca.LSO{Header: large[:44], MSS: 1000}
	buf := area("192.0.2.2", "192.0.2.1", 0, 64, 1, message)
	wc := received(buf)
	if n := testing.AllocsPerRun(1000, func() { // also with a full ring
		r.FromHost(at, frame)
		r.ToHost(at, pieces)
		r.Sent(at, wr, large)
		r.Received(at, wc, buf)
		r.Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
