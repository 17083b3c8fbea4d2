package iface

import (
	"errors"
	"sync"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// maxJobs bounds what waits for the worker: one operation of each rung, of which
// the ladder gave up all but the last.
const maxJobs = 16

// worker runs operations one after the other on a goroutine of its own, since
// verbs may block. Whoever has an operation under way leaves the endpoint to it.
type worker struct {
	jobs    chan func() result
	results chan result
	busy    int // operations without a result yet; owned by Run
	ended   sync.WaitGroup
}

// result is what became of an operation.
type result struct {
	op     uint64
	err    error
	class  qprecovery.Class // of err
	state  hca.QPState      // of a query
	frozen bool             // of a proof
	of     *attachment      // that it changed; nil for a query
	fresh  bool             // it opened an attachment: a device just back that refuses is not reset for that
	after  func()           // for Run, before the ladder hears of it; may be nil
}

func newWorker() worker {
	return worker{jobs: make(chan func() result, maxJobs), results: make(chan result, maxJobs)}
}

// run works until close.
func (w *worker) run() {
	for job := range w.jobs {
		w.results <- job()
	}
}

func (w *worker) start() { w.ended.Go(w.run) }

func (w *worker) do(job func() result) {
	w.busy++
	w.jobs <- job
}

// took notes that a result was received.
func (w *worker) took(r result) {
	w.busy--
	if r.after != nil {
		r.after()
	}
}

// settle waits until nothing is under way, of which the ladder does not hear any
// more. It returns what failed.
func (w *worker) settle() error {
	var errs []error
	for w.busy > 0 {
		r := <-w.results
		errs = append(errs, r.err)
		w.took(r)
	}
	return errors.Join(errs...)
}

// close ends the worker; nothing is under way.
func (w *worker) close() {
	close(w.jobs)
	w.ended.Wait()
}
