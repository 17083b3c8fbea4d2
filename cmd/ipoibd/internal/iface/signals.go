package iface

import (
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
)

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
