// Package endpoint builds an interface's share of an open device: the [Endpoint], with PD, MRs, CQs, the queue pair
// in RTS with its groups, and the address handles, built and closed in order.
//
// A rung of recovery rebuilds the layers that have failed, and leaves the others as they are (Stop, Start).
// Goroutines that post and poll use the endpoint through a [Caller], which detects a device that hangs in such a
// call. Workers make the address handles of peers ([AHWorkers]), since making one may block. [Endpoint.Prove]
// finds out whether the device has frozen.
package endpoint

import "ipoibd/hca"

// Session is an open device behind a guard (hca/guard), and the events of its objects. It stays open for longer than
// its endpoints.
type Session interface {
	hca.Device
	hca.WireReporter
	// Fail and AbandonCall are methods of the guard.
	Fail(cause error)
	AbandonCall() (returned func())
	// Watch calls f for each event of a QP or CQ until stop is called; f is never called after stop has returned. An
	// object has one watcher. f must not block, nor call Watch or stop.
	Watch(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func())
}
