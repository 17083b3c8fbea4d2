package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

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

// FilterCounts are the counts of a filter since it was loaded.
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

// waitBuckets is the length of FilterCounts.Waits: the last bucket begins at 2^30 ns, a second.
const waitBuckets = 32

// Filter is a program for TUNSETFILTEREBPF.
type Filter struct {
	objects filterObjects
	page    []byte         // the map "waiting"
	since   *atomic.Uint64 // its element
	clock   clock
	waits   [waitBuckets]atomic.Uint64
	waited  atomic.Uint64 // ns
}

// NewFilter loads a filter. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func NewFilter() (*Filter, error) {
	spec, err := loadFilter()
	if err != nil {
		return nil, err
	}
	f := new(Filter)
	if err := load("filter", spec, &f.objects, nil); err != nil {
		return nil, err
	}
	f.page, err = unix.Mmap(f.objects.Waiting.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		f.clock, err = newClock()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the eBPF filter: %w", err), f.Close())
	}
	f.since = (*atomic.Uint64)(unsafe.Pointer(&f.page[0]))
	f.since.Store(1) // no one waits
	return f, nil
}

// Waits records that the reader of the TAP found no frame and is about to wait. Only the reader
// may call it, until Close.
func (f *Filter) Waits() { f.since.Store(0) }

// Woke records that the reader has read a frame for which it waited. A frame that passed before
// Waits was called is not measured.
func (f *Filter) Woke() {
	if since := f.since.Swap(1); since > 1 {
		waited := f.clock.now() - since
		f.waits[min(bits.Len64(waited), waitBuckets-1)].Add(1)
		f.waited.Add(waited)
	}
}

// clock computes CLOCK_MONOTONIC from Go's own clock, without a system call.
type clock struct {
	start time.Time
	at    uint64 // CLOCK_MONOTONIC at start
}

func newClock() (clock, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return clock{time.Now(), uint64(now.Nano())}, os.NewSyscallError("clock_gettime", err)
}

func (c clock) now() uint64 { return c.at + uint64(time.Since(c.start)) }

// FD returns the descriptor of the program, which is valid until Close. A TAP to which it is
// attached keeps the program.
func (f *Filter) FD() int { return f.objects.Filter.FD() }

// Counts returns the counts. Any goroutine may call it until Close.
func (f *Filter) Counts() (out FilterCounts, err error) {
	sum, err := readCounts(f.objects.Counts, func(sum, cpu *filterFilterCounts) {
		addTo(sum.Verdicts[:], cpu.Verdicts[:])
		addTo(sum.Segments[:], cpu.Segments[:])
		addTo(sum.Bytes[:], cpu.Bytes[:])
	})
	out = FilterCounts{Kinds: sum.Verdicts, Segments: sum.Segments[:], Bytes: sum.Bytes[:], Waits: make(Histogram, waitBuckets)}
	for i := range f.waits {
		out.Waits[i] = f.waits[i].Load()
	}
	out.Waited = time.Duration(f.waited.Load())
	return out, err
}

// Close releases the program and its counts. Idempotent.
func (f *Filter) Close() error {
	var err error
	if f.page != nil {
		err, f.page = unix.Munmap(f.page), nil
	}
	if err := errors.Join(err, f.objects.Close()); err != nil {
		return fmt.Errorf("close the eBPF filter: %w", err)
	}
	return nil
}
