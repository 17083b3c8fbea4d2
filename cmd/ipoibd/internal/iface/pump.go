package iface

import (
	"sync"
	"sync/atomic"

	"ipoibd/qprecovery"
)

// pump is a goroutine that moves frames one way until it is halted or fails. Run owns it.
type pump struct {
	verb  qprecovery.Verb // the verb of an error that does not name one
	first func() error    // runs before the first round; may be nil
	once  func() error    // a round
	wake  func()          // makes a round return soon
	ended chan<- struct{} // gets a value when the pump has failed; may be nil

	running bool // started, and neither halted nor found failed since
	gen     uint32
	stop    atomic.Bool
	rounds  atomic.Uint64         // that have ended
	err     atomic.Pointer[error] // why it failed; nil while it runs
	wg      sync.WaitGroup
}

// start runs the pump on the queue pair of generation gen. The pump must not be running.
func (p *pump) start(gen uint32) {
	p.running, p.gen = true, gen
	p.stop.Store(false)
	p.err.Store(nil)
	p.wg.Go(p.run)
}

func (p *pump) run() {
	var err error
	if p.first != nil {
		err = p.first()
	}
	for err == nil && !p.stop.Load() {
		err = p.once()
		p.rounds.Add(1)
	}
	if err == nil {
		return
	}
	p.err.Store(&err)
	select {
	case p.ended <- struct{}{}:
	default: // Run has not handled the previous one yet
	}
}

// halt stops the pump and clears its error, if any. Idempotent.
func (p *pump) halt() {
	if !p.running {
		return
	}
	p.stop.Store(true)
	p.wake()
	p.wg.Wait()
	p.running = false
	p.err.Store(nil)
}

// failure returns the error of a pump that has failed, once.
func (p *pump) failure() error {
	err := p.err.Swap(nil)
	if err == nil {
		return nil
	}
	p.wg.Wait()
	p.running = false
	return *err
}
