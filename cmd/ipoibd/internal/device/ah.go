package device

import (
	"context"
	"errors"
	"sync"

	"ipoibd/hca"
)

const (
	// ahWorkers is how many address handles are made in parallel: on RoCE one may block
	// for a second on a silent peer, and the others must not wait for it.
	ahWorkers = 4
	// maxAHRequests bounds the requests waiting for a worker. It is the number of peers that
	// a table keeps: after a reset the host may send to all of them at once.
	maxAHRequests = 32768
)

// AHResult answers a request.
type AHResult struct {
	ID  uint64
	AH  hca.AH
	Err error
}

// AHWorkers make address handles off the data path, and keep them, so that teardown can
// close them all.
type AHWorkers struct {
	pd      hca.PD
	results chan AHResult
	ctx     context.Context // its end stops the workers
	stop    func()
	wg      sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	more    *sync.Cond // signals that waiting has grown or ctx has ended
	waiting []ahRequest
	live    map[hca.AH]struct{}
}

type ahRequest struct {
	id   uint64
	spec hca.AHSpec
}

func newAHWorkers(pd hca.PD) *AHWorkers {
	w := &AHWorkers{
		pd:      pd,
		results: make(chan AHResult),
		live:    map[hca.AH]struct{}{},
	}
	w.more = sync.NewCond(&w.mu)
	w.ctx, w.stop = context.WithCancel(context.Background())
	for range ahWorkers {
		w.wg.Go(w.run)
	}
	return w
}

// Create requests a handle. It returns false if too many requests are waiting.
func (w *AHWorkers) Create(id uint64, spec hca.AHSpec) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) >= maxAHRequests {
		return false
	}
	w.waiting = append(w.waiting, ahRequest{id, spec})
	w.more.Signal()
	return true
}

// Results returns the channel of the answers.
func (w *AHWorkers) Results() <-chan AHResult { return w.results }

// Destroy closes a handle that no posted request uses.
func (w *AHWorkers) Destroy(ah hca.AH) error {
	w.mu.Lock()
	delete(w.live, ah)
	w.mu.Unlock()
	return ah.Close()
}

func (w *AHWorkers) run() {
	for {
		r, ok := w.next()
		if !ok {
			return
		}
		ah, err := w.create(r.spec)
		select {
		case <-w.ctx.Done():
		case w.results <- AHResult{r.id, ah, err}:
		}
	}
}

// next waits for a request. It returns false once the workers must stop.
func (w *AHWorkers) next() (r ahRequest, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && w.ctx.Err() == nil {
		w.more.Wait()
	}
	if w.ctx.Err() != nil {
		return r, false
	}
	r, w.waiting = w.waiting[0], w.waiting[1:]
	return r, true
}

// create makes a handle and keeps it.
func (w *AHWorkers) create(spec hca.AHSpec) (hca.AH, error) {
	ah, err := w.pd.CreateAH(spec)
	if err == nil {
		w.mu.Lock()
		w.live[ah] = struct{}{}
		w.mu.Unlock()
	}
	return ah, err
}

// Close waits for each worker to finish its current handle, ends the workers and closes all
// handles. The results need not be received. Calling Close again retries the
// handles that could not be closed.
func (w *AHWorkers) Close() error {
	w.stop()
	w.mu.Lock()
	w.more.Broadcast()
	w.mu.Unlock()
	w.wg.Wait()
	var errs []error
	for ah := range w.live {
		if err := ah.Close(); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(w.live, ah)
	}
	return errors.Join(errs...)
}
