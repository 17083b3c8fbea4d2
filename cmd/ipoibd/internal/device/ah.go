package device

import (
	"errors"
	"sync"

	"ipoibd/hca"
)

const (
	// ahWorkers make address handles side by side: on RoCE each may block for
	// a second on a silent peer, and the others must not wait for it.
	ahWorkers = 4
	// maxAHRequests bounds what waits for a worker.
	maxAHRequests = 256
)

// AHResult answers a request.
type AHResult struct {
	ID  uint64
	AH  hca.AH
	Err error
}

// AHWorkers make address handles off the data path and keep them, so that
// teardown can close them all.
type AHWorkers struct {
	pd       hca.PD
	requests chan ahRequest
	results  chan AHResult
	stop     chan struct{}
	ending   sync.Once
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
		stop:     make(chan struct{}),
		live:     map[hca.AH]struct{}{},
	}
	for range ahWorkers {
		w.wg.Go(w.run)
	}
	return w
}

// Create asks for a handle; false when too many are waiting.
func (w *AHWorkers) Create(id uint64, spec hca.AHSpec) bool {
	select {
	case w.requests <- ahRequest{id, spec}:
		return true
	default:
		return false
	}
}

// Results delivers the answers.
func (w *AHWorkers) Results() <-chan AHResult { return w.results }

// Destroy closes a handle that no posted request uses.
func (w *AHWorkers) Destroy(ah hca.AH) error {
	w.mu.Lock()
	delete(w.live, ah)
	w.mu.Unlock()
	return ah.Close()
}

func (w *AHWorkers) run() {
	for !w.stopped() {
		select {
		case <-w.stop:
		case r := <-w.requests:
			w.make(r)
		}
	}
}

func (w *AHWorkers) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

func (w *AHWorkers) make(r ahRequest) {
	ah, err := w.pd.CreateAH(r.spec)
	if err == nil {
		w.mu.Lock()
		w.live[ah] = struct{}{}
		w.mu.Unlock()
	}
	select {
	case <-w.stop:
	case w.results <- AHResult{r.id, ah, err}:
	}
}

// Close ends the workers, once each has made the handle that it is at, and closes
// every handle left. It does not wait for anybody to take results. What could not
// be closed is tried again when it is repeated.
func (w *AHWorkers) Close() error {
	w.ending.Do(func() { close(w.stop) })
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
