package iface

import "sync"

// job runs on a worker. It returns what the worker's owner does with the result, or nil.
type job func() (then func())

// worker runs jobs one after the other on a goroutine of its own, because verbs and
// netlink may block. Only its owner calls its methods.
type worker struct {
	jobs    chan job
	results chan func()
	waiting []job // for the current job to end
	busy    int   // jobs whose result was not taken yet
	ended   sync.WaitGroup
}

// newWorker returns a worker whose channels never block either side: only one job is under
// way at a time.
func newWorker() worker { return worker{jobs: make(chan job, 1), results: make(chan func(), 1)} }

func (w *worker) start() {
	w.ended.Go(func() {
		for j := range w.jobs {
			w.results <- j()
		}
	})
}

// do runs a job once the jobs before it have ended.
func (w *worker) do(j job) {
	if w.busy++; w.busy > 1 {
		w.waiting = append(w.waiting, j)
		return
	}
	w.jobs <- j
}

// ask runs a question on a worker, and then passes the answer on.
func ask[T any](w *worker, question func() (T, error), then func(T, error)) {
	w.do(func() func() {
		answer, err := question()
		return func() { then(answer, err) }
	})
}

// took handles a result and starts the next job.
func (w *worker) took(then func()) {
	if w.busy--; len(w.waiting) > 0 {
		w.jobs <- w.waiting[0]
		w.waiting = w.waiting[1:]
	}
	if then != nil {
		then()
	}
}

// close waits until no job is left, and ends the worker.
func (w *worker) close() {
	for w.busy > 0 {
		w.took(<-w.results)
	}
	close(w.jobs)
	w.ended.Wait()
}
