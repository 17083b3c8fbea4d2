package endpoint

import (
	"runtime"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

// BenchmarkHandles makes handles for 10,000 peers on the software HCA, behind the guard, as
// after a reset: the time and the memory of each, and the time to close it.
func BenchmarkHandles(b *testing.B) {
	const n = 10_000
	dev, err := soft.Open(soft.Config{Name: "soft", Transport: memfabric.New(1).Attach("a", 1500, addr1)})
	if err != nil {
		b.Fatal(err)
	}
	g := guard.Wrap(dev, guard.Options{})
	defer g.Close()
	pd, err := g.AllocPD()
	if err != nil {
		b.Fatal(err)
	}
	var memory uint64
	var closing time.Duration
	for b.Loop() {
		b.StopTimer()
		before := heapAlloc()
		b.StartTimer()
		w := newAHWorkers(pd)
		for i := range uint64(n) {
			dgid := hca.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: byte(i >> 8), 15: byte(i)}
			if !w.Create(i, hca.AHSpec{Port: 1, Global: true, DGID: dgid}) {
				b.Fatal("no room for a request")
			}
		}
		handles := make([]hca.AH, 0, n)
		for range n {
			r := <-w.Results()
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			handles = append(handles, r.AH)
		}
		b.StopTimer()
		memory += heapAlloc() - before
		start := time.Now()
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		closing += time.Since(start)
		runtime.KeepAlive(handles)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/handle")
	b.ReportMetric(float64(closing.Nanoseconds())/float64(b.N*n), "ns/close")
	b.ReportMetric(float64(memory)/float64(b.N*n), "B/handle")
}

func heapAlloc() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
