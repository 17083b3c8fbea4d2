// Package bound measures physical bounds beside benchmarks: how long this machine needs, at
// the same moment, to do no more than touch the same bytes.
package bound

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Work is what a benchmark cannot avoid.
type Work struct {
	times int
	do    func()
}

// Times is w several times.
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

// CRC is the CRC-32 of n bytes, by the processor's instructions as hash/crc32 uses them.
func CRC(n int) Work {
	b := make([]byte, n)
	return Work{1, func() { results.crc = crc32.ChecksumIEEE(b) }}
}

// Read reads n bytes, with the vector instructions of bytes.IndexByte.
func Read(n int) Work {
	b := make([]byte, n)
	return Work{1, func() { results.at = bytes.IndexByte(b, 1) }}
}

// Access is one read from a random one of n cache lines, which depends on the read before it.
func Access(n int) Work {
	const line = 64 / 4
	lines, order := make([]uint32, n*line), rand.New(rand.NewPCG(1, 2)).Perm(n)
	for i, from := range order {
		lines[from*line] = uint32(order[(i+1)%n] * line)
	}
	return Work{1, func() { results.place = lines[results.place%uint32(len(lines))] }}
}

// Report adds the bound of an iteration to the results of a benchmark whose loop has ended,
// and by what factor the iteration exceeds it.
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
