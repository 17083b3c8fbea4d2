package iface

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/ud"
	"ipoibd/ud/record"
)

// records are the captures of the interface. They continue while the queue pair is replaced.
type records struct {
	origin atomic.Pointer[record.Origin] // of the queue pair that the lanes use, or used last

	mu   sync.Mutex
	sets [][]ud.Recorder               // of each capture, one recorder for each producer
	slow atomic.Pointer[[]ud.Recorder] // the recorders of Run's goroutine
}

// Origin returns the current address of the interface on the fabric, or nil before it first had
// one. Any goroutine may call it.
func (f *Iface) Origin() *record.Origin { return f.lanes.records.origin.Load() }

// Done is closed when Run has ended.
func (f *Iface) Done() <-chan struct{} { return f.done }

// Producers returns how many recorders [Iface.Record] needs: one for each direction of each
// lane, and one for the frames of the slow path.
func (f *Iface) Producers() int { return 2*len(f.lanes.all) + 1 }

// Record copies all frames and messages of the interface to recorders, one for each producer,
// until end is called. Any goroutine may call both. After end, a producer may complete its
// batch.
func (f *Iface) Record(set []ud.Recorder) (end func()) {
	r := &f.lanes.records
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets = append(r.sets, set)
	f.lanes.useRecorders()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sets = slices.DeleteFunc(r.sets, func(s []ud.Recorder) bool { return &s[0] == &set[0] })
		f.lanes.useRecorders()
	}
}

// useRecorders gives each producer its recorders. The caller holds the mutex.
func (ls *lanes) useRecorders() {
	list := func(producer int) (out []ud.Recorder) {
		for _, set := range ls.records.sets {
			out = append(out, set[producer])
		}
		return out
	}
	for i, l := range ls.all {
		l.tx.Record(list(2 * i))
		l.rx.Record(list(2*i + 1))
	}
	slow := list(2 * len(ls.all))
	ls.records.slow.Store(&slow)
	ls.holdFast(holdCapture, len(ls.records.sets) > 0)
}

// wroteSlow records a frame of the slow path that the TAP has accepted.
func (r *records) wroteSlow(at time.Time, frame []byte) {
	if list := r.slow.Load(); list != nil {
		for _, rec := range *list {
			rec.ToHost(at, [][]byte{frame})
			rec.Done()
		}
	}
}

// moved sets the address of the queue pair, on the worker, before the lanes use it.
func (r *records) moved(a *attachment) {
	self := a.ep.Self()
	to := self.AH.Spec()
	r.origin.Store(&record.Origin{
		GID:  to.DGID,
		LID:  to.DLID,
		QPN:  self.QPN,
		QKey: self.QKey,
		PKey: a.ep.Spec.Plan.PKey,
	})
}
