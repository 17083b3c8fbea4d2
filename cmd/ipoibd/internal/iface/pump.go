package iface

import (
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/qprecovery"
)

// pump is a goroutine that carries frames one way, until halt or an error. Run
// owns it.
type pump struct {
	verb  qprecovery.Verb // that an error without a name is of
	first func() error    // before the first round; may be nil
	once  func() error    // a round
	wake  func()          // makes a round return soon
	ended chan<- struct{}

	running bool // it was started and not halted since
	gen     uint32
	stop    atomic.Bool
	err     atomic.Pointer[error] // what it ended with; nil while it runs
	wg      sync.WaitGroup
}

// start runs the pump on the queue pair of generation gen. It is not running.
func (p *pump) start(gen uint32) {
	p.running, p.gen = true, gen
	p.stop.Store(false)
	p.err.Store(nil)
	p.wg.Go(p.run)
}

func (p *pump) run() {
	err := p.begin()
	for err == nil && !p.stop.Load() {
		err = p.once()
	}
	if err == nil {
		return
	}
	p.err.Store(&err)
	select {
	case p.ended <- struct{}{}:
	default: // Run has not looked since the last one
	}
}

func (p *pump) begin() error {
	if p.first == nil {
		return nil
	}
	return p.first()
}

// halt ends the pump, and forgets an error that it ended with before.
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

// failure returns once what the pump ended with, nil while it runs.
func (p *pump) failure() error {
	if err := p.err.Swap(nil); err != nil {
		p.wg.Wait()
		p.running = false
		return *err
	}
	return nil
}

// makePumps prepares both. The receive pump begins with the buffers that came
// back flushed before a queue pair was found to be in order.
func (a *attachment) makePumps(path *dataPath) {
	a.tx = pump{verb: qprecovery.VerbPostSend, once: path.tx.Pump, ended: a.ended, wake: func() {
		path.tx.Wake()
		a.ep.SendCQ.Wake()
	}}
	a.rx = pump{
		verb: qprecovery.VerbPostRecv, first: path.rx.Refill, ended: a.ended,
		once: func() error { return path.rx.Pump(time.Time{}) },
		wake: func() { a.ep.RecvCQ.Wake() },
	}
}
