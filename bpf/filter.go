package bpf

import (
	"math"
	"math/bits"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is a kind of frame that the filter distinguishes.
type Kind int

// Kinds of frames. All but Passed are dropped.
const (
	Passed    Kind = iota // IPv4, IPv6, ARP and RARP
	Runt                  // shorter than an Ethernet header
	VLAN                  // IEEE 802.1Q or 802.1ad
	LLC                   // with a length instead of a type (IEEE 802.3), such as STP
	LLDP                  // IEEE 802.1AB
	PPPoE                 // RFC 2516
	OtherType             // any other type
	NumKind
)

// FilterCounts are the counts of a filter since [Programs.Filter] returned it.
type FilterCounts struct {
	Kinds [NumKind]uint64
	// Segments and Bytes are distributions of the passed frames: by the number of segments
	// into which the daemon must cut the frame (1 for a frame that is sent whole), and by
	// length from the Ethernet header on.
	Segments, Bytes Histogram
	// Waits is the distribution of the nanoseconds from the transmission of a frame until a
	// waiting reader had read it.
	Waits Histogram
	// Waited is the sum of these waits.
	Waited time.Duration
}

// Lengths of the histograms. The last bucket of waits begins at 2^30 ns, a second.
const (
	segmentBuckets = len(filterFilterCounts{}.Segments)
	byteBuckets    = len(filterFilterCounts{}.Bytes)
	waitBuckets    = 32
)

// Filter is a program for TUNSETFILTEREBPF.
type Filter struct {
	of     *Programs
	slot   int
	closed atomic.Bool
	waits  [waitBuckets]atomic.Uint64
	waited atomic.Uint64 // ns
}

// notWaiting is the value of filterFilterWait.Since while no reader waits. Zero means that one waits,
// and no frame has passed yet.
const notWaiting = 1

// since returns the time at which the first frame for the waiting reader passed.
func (f *Filter) since() *uint64 { return &f.of.waiting[f.slot].Since }

// counted returns the counts of each CPU.
func (f *Filter) counted() []filterFilterCounts {
	return f.of.counts[f.slot*f.of.cpus : (f.slot+1)*f.of.cpus]
}

func (f *Filter) reset() {
	cpus := f.counted()
	for i := range cpus {
		cpus[i] = filterFilterCounts{}
	}
	atomic.StoreUint64(f.since(), notWaiting)
}

// Waits records that the reader of the TAP found no frame and is about to wait. Only the reader
// may call it, until Close.
func (f *Filter) Waits() { atomic.StoreUint64(f.since(), 0) }

// Woke records that the reader has read a frame for which it waited. A frame that passed before
// Waits was called is not measured.
func (f *Filter) Woke() {
	if since := atomic.SwapUint64(f.since(), notWaiting); since > notWaiting {
		waited := f.of.clock.now() - since
		f.waits[min(bits.Len64(waited), waitBuckets-1)].Add(1)
		f.waited.Add(waited)
	}
}

// clock computes CLOCK_MONOTONIC from Go's own clock, without a system call.
type clock struct {
	start time.Time
	at    uint64 // CLOCK_MONOTONIC at start
}

// newClock compares the two clocks by a function that reads CLOCK_MONOTONIC. The result is never behind that clock, so
// that no wait is negative, and ahead of it by the time between two readings: the shortest of several, since the process
// may lose its processor in between.
func newClock(read func() (uint64, error)) (best clock, err error) {
	const times = 16
	least := time.Duration(math.MaxInt64)
	for range times {
		c := clock{start: time.Now()}
		if c.at, err = read(); err != nil {
			return clock{}, err
		}
		if took := time.Since(c.start); took < least {
			best, least = c, took
		}
	}
	return best, nil
}

// monotonic reads CLOCK_MONOTONIC, in nanoseconds.
func monotonic() (uint64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return uint64(now.Nano()), os.NewSyscallError("clock_gettime", err)
}

func (c clock) now() uint64 { return c.at + uint64(time.Since(c.start)) }

// FD returns the descriptor of the program, which belongs to the [Programs].
func (f *Filter) FD() int { return f.of.filters[f.slot] }

// Counts returns the counts. Any goroutine may call it until Close.
func (f *Filter) Counts() FilterCounts {
	c := FilterCounts{
		Segments: make(Histogram, segmentBuckets),
		Bytes:    make(Histogram, byteBuckets),
		Waits:    make(Histogram, waitBuckets),
	}
	cpus := f.counted()
	for i := range cpus {
		cpu := &cpus[i]
		addTo(c.Kinds[:], cpu.Verdicts[:])
		addTo(c.Segments, cpu.Segments[:])
		addTo(c.Bytes, cpu.Bytes[:])
	}
	for i := range f.waits {
		c.Waits[i] = f.waits[i].Load()
	}
	c.Waited = time.Duration(f.waited.Load())
	return c
}

// addTo adds the counts of one CPU, which the program changes meanwhile, to a sum.
func addTo(sum, cpu []uint64) {
	for i := range cpu {
		sum[i] += atomic.LoadUint64(&cpu[i])
	}
}

// Close gives the filter back for another TAP. It must not be attached any more. Idempotent.
func (f *Filter) Close() {
	if f.closed.Swap(true) {
		return
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.free = append(f.of.free, f.slot)
}
