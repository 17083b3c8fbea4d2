package endpoint

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

// AHResult answers a request. Without ID it is the error of a handle that could not be destroyed.
type AHResult struct {
	ID  uint64 // as passed to Create, where it is not 0
	AH  hca.AH
	Err error
}

// AHWorkers make address handles off the data path, and keep them, so that teardown can
// close them all. One more goroutine destroys those that are no longer used: there may be thousands, for
// which neither a new handle nor a rung of recovery waits.
type AHWorkers struct {
	pd      hca.PD
	results chan AHResult
	ctx     context.Context // its end stops the workers
	stop    func()
	wg      sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	more     *sync.Cond // signals that waiting has grown or ctx has ended
	waiting  []ahRequest
	unneeded *sync.Cond // signals that unused has grown or ctx has ended
	unused   []hca.AH   // to destroy; they are in live as well
	live     map[hca.AH]struct{}
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
	w.more, w.unneeded = sync.NewCond(&w.mu), sync.NewCond(&w.mu)
	w.ctx, w.stop = context.WithCancel(context.Background())
	for range ahWorkers {
		w.wg.Go(w.run)
	}
	w.wg.Go(w.destroyUnused)
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

// Destroy requests that handles are closed, which no posted request uses. Results delivers each
// failure.
func (w *AHWorkers) Destroy(ahs []hca.AH) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unused = append(w.unused, ahs...)
	w.unneeded.Signal()
}

func (w *AHWorkers) destroyUnused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.ctx.Err() == nil {
		if len(w.unused) == 0 {
			w.unneeded.Wait()
			continue
		}
		ah := w.unused[0]
		w.unused = w.unused[1:]
		w.mu.Unlock()
		err := ah.Close()
		if err != nil {
			select {
			case <-w.ctx.Done():
			case w.results <- AHResult{Err: err}:
			}
		}
		w.mu.Lock()
		if err == nil {
			delete(w.live, ah)
		}
	}
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

// Close waits for each goroutine to finish its current handle, ends them and closes all
// handles. The results need not be received. Calling Close again retries the
// handles that could not be closed.
func (w *AHWorkers) Close() error {
	w.stop()
	w.mu.Lock()
	w.more.Broadcast()
	w.unneeded.Signal()
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
