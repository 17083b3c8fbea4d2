package record

import (
	"bytes"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// A ring returns what was put in, in order, and refuses what does not fit.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2*recordEvery, 8*recordEvery).Draw(t, "size")
		r := newRing(size)
		var model [][]byte
		used, number := 0, byte(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := rapid.IntRange(0, size/2).Draw(t, "n")
			switch s, buf := r.reserve(n); {
			case rapid.Bool().Draw(t, "release") && len(model) > 0:
				got := r.peek()
				if !bytes.Equal(got.Data, model[0]) {
					t.Fatalf("%d bytes of %x, want %d", len(got.Data), got.Data[:1], len(model[0]))
				}
				used -= len(model[0])
				model = model[1:]
				r.release()
			case s == nil:
				if len(model) < len(r.records) && (len(model) == 0 || used+2*n <= size/2) {
					t.Fatalf("%d bytes refused, with %d records of %d bytes in a ring of %d", n, len(model), used, size)
				}
			case rapid.Bool().Draw(t, "commit"):
				number++
				for i := range buf {
					buf[i] = number
				}
				s.Data = buf
				r.commit(s)
				model, used = append(model, bytes.Repeat([]byte{number}, n)), used+n
			}
		}
		if len(model) == 0 && r.peek() != nil {
			t.Fatal("an empty ring has a record")
		}
	})
}

// One goroutine puts, another takes: nothing is torn, nothing out of order.
func TestRingConcurrently(t *testing.T) {
	r := newRing(16 * recordEvery)
	const records = 20000
	var producer sync.WaitGroup
	producer.Go(func() {
		for i := 0; i < records; {
			s, buf := r.reserve(i % 700)
			if s == nil {
				continue
			}
			for k := range buf {
				buf[k] = byte(i)
			}
			s.Record = Record{At: int64(i), Data: buf}
			r.commit(s)
			i++
		}
	})
	for i := 0; i < records; {
		s := r.peek()
		if s == nil {
			continue
		}
		if s.At != int64(i) || len(s.Data) != i%700 || bytes.Count(s.Data, []byte{byte(i)}) != len(s.Data) {
			t.Fatalf("record %d: number %d, %d bytes", i, s.At, len(s.Data))
		}
		r.release()
		i++
	}
	producer.Wait()
}
