// Package guard adds an error state to any [hca.Device]. After a fatal event the device
// is a zombie: a handle whose methods all return without using the hardware (R18, R19).
// [Wrap] a backend; the owner calls [Device.Fail].
//
// # States
//
//	from    | to      | cause
//	healthy | failed  | Fail; the event DEVICE_FATAL; a verb or post that
//	        |         | returns hca.ErrIO; a verb that cannot start within
//	        |         | its timeout because MaxStuck others are stuck
//	failed  |         | permanent: recovery opens the device again
//
// An atomic store marks the state before anything is flushed, so the data path sees it
// before anything is freed. In the failed state
//
//	posts                   | fail immediately, with a [Failure]
//	verbs that allocate,    | fail immediately, with a [Failure]
//	modify or query         |
//	verbs that release      | succeed; the backend releases in the background
//	Poll                    | returns WR_FLUSH_ERR for each request that was
//	                        | posted and not completed, then the Failure
//	Arm, Wait               | return nil while Poll has completions, then the
//	                        | Failure; a blocked Wait is woken
//	NextEvent               | returns DEVICE_FATAL once, unless the backend's own
//	                        | was delivered, then the Failure; ErrClosed once closed
//
// Every [Failure] wraps only the sentinel [hca.ErrIO]. It does not wrap its cause, which
// a caller could mistake for an error of the call.
//
// # The book of requests
//
// Each queue has a book: a ring with the IDs of the requests that are posted and not
// completed. Its size depends on the depth of the queue, so a post does not allocate. A
// queue whose book is full is full. A completion removes its request from the book. If no
// book has the request, the completion belongs to the queue before a reset, or to a
// predecessor with the same QPN; it is dropped and counted. A post during which the device
// fails reports as accepted only the requests up to the last completed one; the rest is
// not flushed. Completions of a queue are matched by their IDs. On a CQ of both queues of
// a QP, a failed request is searched among the sends first.
//
// # Verbs that hang
//
// A verb that may block according to the contract runs on its own goroutine. Its caller
// gets [ErrStuck] after Options.VerbTimeout, or after AHTimeout or HostTimeout if the
// verb waits for more than the device. If the device fails first, the caller gets the
// Failure. The goroutine is abandoned and counted, and an object that it creates late is
// closed again.
//
// At most Options.MaxStuck verbs are in the backend at once, and as many more that
// create an address handle, which wait for peers (R7). No peer can delay such a verb
// for longer than Options.AHStuck. After that time it counts among the other verbs, and a
// new peer gets its place.
//
// The timeout is measured in quarters. A stall of this process, however long, consumes at
// most one quarter, so it is not mistaken for a freeze of the device. Posts, Poll, Arm,
// Wait and Wake are called directly, because they do not wait for hardware.
//
// # Releasing
//
// In the healthy state the result of a release is that of the backend (ErrBusy). In the
// failed state an object is closed for its caller immediately. One goroutine then closes
// the backend's objects, each after its children are closed and the verbs on it have
// returned. [Device.Close] waits for that goroutine for at most VerbTimeout.
//
// If the backend hangs, the device remains a zombie, which keeps its threads and its
// memory. [Zombies] counts the zombies of an HCA; while there are too many, the owner
// does not open another instance ([Zombies.Room]).
//
// # Generations
//
// Each CQ and QP gets a generation that is unique in this process, so an ID of an
// earlier instance of the device is invalid in a later one (R20). An event about an
// object that no longer exists is dropped and counted. A CQ or AH of another instance, or
// of another device (R28), is refused with hca.ErrInvalid.
//
// # Locks
//
// Device.mu guards the registry and the state of all objects. CQ.mu guards the books of
// the queues that complete there; it is locked once per Poll and twice per post, and never
// while the backend is called. Neither is locked while the other is held.
package guard
