// Package bound measures physical bounds next to benchmarks: how long this machine takes, under
// the same conditions, merely to access the same bytes.
package bound

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Work is the work that a benchmark cannot avoid.
type Work struct {
	times int
	do    func()
}

// Times repeats w n times.
func Times(n int, w Work) Work { return Work{n * w.times, w.do} }

// results keeps the compiler from removing reads.
var results struct {
	at    int
	crc   uint32
	place uint32
}

// Copy copies n bytes.
func Copy(n int) Work {
	from, to := make([]byte, n), make([]byte, n)
	return Work{1, func() { copy(to, from) }}
}

// CRC computes the CRC-32 of n bytes with the processor's instructions, as hash/crc32 does.
func CRC(n int) Work {
	b := make([]byte, n)
	return Work{1, func() { results.crc = crc32.ChecksumIEEE(b) }}
}

// Read reads n bytes, with the vector instructions of bytes.IndexByte.
func Read(n int) Work {
	b := make([]byte, n)
	return Work{1, func() { results.at = bytes.IndexByte(b, 1) }}
}

// Access reads a random one of n cache lines. Each read depends on the previous one.
func Access(n int) Work {
	const line = 64 / 4
	lines, order := make([]uint32, n*line), rand.New(rand.NewPCG(1, 2)).Perm(n)
	for i, from := range order {
		lines[from*line] = uint32(order[(i+1)%n] * line)
	}
	return Work{1, func() { results.place = lines[results.place%uint32(len(lines))] }}
}

// Report adds the bound of an iteration, and the factor by which the iteration exceeds it, to the
// results of a benchmark whose loop has ended.
func Report(b *testing.B, of ...Work) {
	b.Helper()
	own := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	var limit float64
	for _, w := range of {
		limit += float64(w.times) * measure(w.do)
	}
	b.ReportMetric(limit, "bound-ns/op")
	b.ReportMetric(own/limit, "x-bound")
}

// measure returns the median duration of do, in nanoseconds.
func measure(do func()) float64 {
	const samples, length = 15, time.Millisecond
	n := 1
	for {
		if took := run(do, n); took >= length/2 {
			break
		}
		n *= 2
	}
	var each [samples]float64
	for i := range each {
		each[i] = float64(run(do, n).Nanoseconds()) / float64(n)
	}
	slices.Sort(each[:])
	return each[samples/2]
}

func run(do func(), n int) time.Duration {
	start := time.Now()
	for range n {
		do()
	}
	return time.Since(start)
}
