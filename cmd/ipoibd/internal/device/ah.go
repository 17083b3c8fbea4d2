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
	// maxAHRequests bounds the requests waiting for a worker.
	maxAHRequests = 256
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
	pd       hca.PD
	requests chan ahRequest
	results  chan AHResult
	ctx      context.Context // ends with the workers
	stop     func()
	wg       sync.WaitGroup

	mu   sync.Mutex // guards live
	live map[hca.AH]struct{}
}

type ahRequest struct {
	id   uint64
	spec hca.AHSpec
}

func newAHWorkers(pd hca.PD) *AHWorkers {
	w := &AHWorkers{
		pd:       pd,
		requests: make(chan ahRequest, maxAHRequests),
		results:  make(chan AHResult),
		live:     map[hca.AH]struct{}{},
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	for range ahWorkers {
		w.wg.Go(w.run)
	}
	return w
}

// Create requests a handle. It returns false if too many requests are waiting.
func (w *AHWorkers) Create(id uint64, spec hca.AHSpec) bool {
	select {
	case w.requests <- ahRequest{id, spec}:
		return true
	default:
		return false
	}
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
	for w.ctx.Err() == nil {
		select {
		case <-w.ctx.Done():
		case r := <-w.requests:
			ah, err := w.create(r.spec)
			select {
			case <-w.ctx.Done():
			case w.results <- AHResult{r.id, ah, err}:
			}
		}
	}
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
