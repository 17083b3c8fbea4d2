package iface

import (
	"sync/atomic"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
)

// pump is a goroutine that moves frames one way until it is halted or fails. Run owns it.
type pump struct {
	verb  qprecovery.Verb // the verb of an error that does not name one
	first func() error    // runs before the first round; may be nil
	once  func() error    // a round
	wake  func()          // makes a round return soon
	ended chan<- struct{} // gets a value when the pump has failed; may be nil

	running bool // started, and neither halted, found failed nor abandoned since
	gen     uint32
	by      *endpoint.Caller // by which it uses the device; nil: it does not
	stop    atomic.Bool
	rounds  atomic.Uint64         // that have ended
	err     atomic.Pointer[error] // why it failed; nil while it runs
	done    chan struct{}         // closed when the goroutine has ended
}

// start runs the pump on the queue pair of generation gen, which it uses by a caller, which may be nil.
// The pump must not be running.
func (p *pump) start(gen uint32, by *endpoint.Caller) {
	p.running, p.gen, p.by = true, gen, by
	p.stop.Store(false)
	p.err.Store(nil)
	p.done = make(chan struct{})
	go p.run()
}

func (p *pump) run() {
	defer close(p.done)
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
	signal(p.ended)
}

// halt stops the pump and clears its error, if any. It abandons a pump that hangs in a call of its
// Caller: then it returns an error that wraps hca.ErrStuck, and neither the pump nor what it uses may be
// used again. Idempotent.
func (p *pump) halt() error {
	if !p.running {
		return nil
	}
	p.running = false
	p.stop.Store(true)
	p.wake()
	if p.by != nil {
		if err := p.by.Await(p.done); err != nil {
			return err
		}
	}
	<-p.done
	p.err.Store(nil)
	return nil
}

// failure returns the error of a pump that has failed, once.
func (p *pump) failure() error {
	err := p.err.Swap(nil)
	if err == nil {
		return nil
	}
	<-p.done
	p.running = false
	return *err
}

// maxFaults bounds the faults that wait for Run. Those of one incident are alike, so the rest can be dropped.
const maxFaults = 64

// signals are what the pumps and the events of the device report to Run, without ever waiting for it.
type signals struct {
	faults  chan qprecovery.Fault // of the data path and of asynchronous events
	flushes chan qprecovery.Fault // the same, for flushed work requests only
	ended   chan struct{}         // has a value after a pump has failed
	stirred chan struct{}         // has a value after a pump of a resting lane has moved something
}

func newSignals() signals {
	return signals{
		faults: make(chan qprecovery.Fault, maxFaults), flushes: make(chan qprecovery.Fault, 1),
		ended: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
	}
}

// signal puts a value into a channel, unless Run has not handled the previous one yet.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// onFailure returns the function that a pump calls for each work request that failed.
func (s *signals) onFailure(op hca.WCOpcode) func(ud.Failure) {
	return func(x ud.Failure) {
		fault := qprecovery.Fault{Gen: uint32(x.WC.ID >> 32), Class: qprecovery.OfCompletion(x.WC.Status)}
		to := s.flushes
		if fault.Class != qprecovery.ClassFlushed { // flushed requests are a consequence of another failure
			to = s.faults
			fault.Request = &qprecovery.Request{ // R3
				Status: x.WC.Status, Opcode: op, VendorErr: x.WC.VendorErr, WRID: x.WC.ID,
				SGList: []hca.SGE{x.SGE}, DestQPN: x.Dest.QPN,
			}
		}
		select {
		case to <- fault:
		default: // enough faults are queued already
		}
	}
}

// onEvent is called for each asynchronous event of the queue pair or its CQs.
func (s *signals) onEvent(gen uint32, ev hca.AsyncEvent) {
	select {
	case s.faults <- qprecovery.Fault{Gen: gen, Class: qprecovery.OfEvent(ev.Type)}:
	default: // enough faults wait already
	}
}
