package capture

import (
	"context"
	"io"
	"math"
	"time"

	"ipoibd/ud"
	"ipoibd/ud/record"
)

const (
	// maxBytes is the room for the copies of one capture: 10 ms at 12 Gbit/s.
	maxBytes = 16 << 20
	// settle is how long a record is held back for older ones of other producers.
	settle = 2 * time.Millisecond
	// checkEvery is the number of records after which Run looks for a reason to end.
	checkEvery = 256
)

// Source is an interface whose packets can be captured.
type Source interface {
	Name() string
	// Producers returns how many recorders Record needs.
	Producers() int
	// Record passes copies of all packets to the recorders until end is called.
	Record(set []ud.Recorder) (end func())
	// Origin returns the current address on the fabric, or nil.
	Origin() *record.Origin
	// Done is closed when the interface has ended.
	Done() <-chan struct{}
}

// Output takes the file. Flush passes on what was written.
type Output interface {
	io.Writer
	Flush() error
}

// Summary says how a capture went.
type Summary struct {
	Packets uint64 // written, at all levels together
	Lost    uint64 // accepted by the filter, but lost because Run was too slow
}

// Run captures until ctx, the duration or the interface ends, or the count is reached, and then
// completes the file. Every packet that passes after the beginning of the file has reached out is
// captured or counted as lost. It returns early with the error of out. A mistake in the request is
// returned before anything is written.
func Run(ctx context.Context, src Source, q Request, out Output) (Summary, error) {
	s, err := q.parse()
	if err != nil {
		return Summary{}, err
	}
	if s.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.duration)
		defer cancel()
	}
	f, err := newFile(out, src.Name(), &s)
	if err != nil {
		return Summary{}, err
	}
	c := &capture{file: f, src: src, wake: make(chan struct{}, 1)}
	end := c.start(&s)
	err = c.run(ctx)
	end()
	if err == nil {
		_, err = c.drain(ctx, math.MaxInt64)
	}
	if err == nil {
		err = f.finish(c.lost)
	}
	return c.summary(), err
}

// capture is a running capture. Run's goroutine owns it.
type capture struct {
	file  *file
	src   Source
	rings []*record.Recorder
	wake  chan struct{} // gets a value when a ring has new records
}

// start begins to record.
func (c *capture) start(s *spec) (end func()) {
	cfg := record.Config{
		In: s.in, Out: s.out, Origin: c.src.Origin, Bytes: max(record.MinBytes, maxBytes/c.src.Producers()),
		Wake: func() {
			select {
			case c.wake <- struct{}{}:
			default: // Run has not handled the previous one yet
			}
		},
	}
	if s.vm != nil {
		cfg.Filter = s.vm
	}
	for _, l := range s.levels {
		cfg.Frames = cfg.Frames || l.Kind() == record.Frame
		cfg.Messages = cfg.Messages || l.Kind() == record.Message
	}
	set := make([]ud.Recorder, c.src.Producers())
	for i := range set {
		r := record.NewRecorder(cfg)
		set[i], c.rings = r, append(c.rings, r)
	}
	return c.src.Record(set)
}

// run writes records until the capture ends.
func (c *capture) run(ctx context.Context) error {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	for {
		young, err := c.drain(ctx, time.Now().Add(-settle).UnixNano())
		if err == nil {
			err = c.file.flush()
		}
		if err != nil || c.file.full() {
			return err
		}
		var settled <-chan time.Time
		wake := c.wake
		if young { // more may come, but these are next
			timer.Reset(settle)
			settled, wake = timer.C, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.src.Done():
			return nil
		case <-wake:
		case <-settled:
		}
	}
}

// drain writes the records up to a time, the oldest first, and reports whether there are
// others. It stops early when ctx ends: what is left then is written by the last call, whose
// time is the largest.
func (c *capture) drain(ctx context.Context, until int64) (others bool, err error) {
	for n := 1; ; n++ {
		oldest, r := c.oldest()
		switch {
		case r == nil || c.file.full():
			return false, nil
		case r.At > until || n%checkEvery == 0 && until < math.MaxInt64 && ctx.Err() != nil:
			return true, nil
		}
		if err := c.file.write(r); err != nil {
			return false, err
		}
		oldest.Release()
	}
}

// oldest returns the oldest record, and its ring.
func (c *capture) oldest() (from *record.Recorder, oldest *record.Record) {
	for _, ring := range c.rings {
		if r := ring.Peek(); r != nil && (oldest == nil || r.At < oldest.At) {
			from, oldest = ring, r
		}
	}
	return from, oldest
}

// lost returns how many packets of a kind were lost.
func (c *capture) lost(k record.Kind) (n uint64) {
	for _, r := range c.rings {
		n += r.Lost(k)
	}
	return n
}

func (c *capture) summary() (s Summary) {
	s.Packets = c.file.total
	for _, l := range c.file.levels {
		s.Lost += c.lost(l.Kind())
	}
	return s
}
