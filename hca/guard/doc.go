// Package guard gives any [hca.Device] an error state: from a fatal event on it
// is a zombie, a handle that answers everybody and needs the hardware for nothing
// (R18, R19). [Wrap] it around a backend; the owner calls [Device.Fail].
//
// # States
//
//	from    | to      | cause
//	healthy | failed  | Fail; the event DEVICE_FATAL; a verb or post that
//	        |         | answers hca.ErrIO; MaxStuck verbs stuck at once
//	failed  |         | for good: recovery opens the device anew
//
// The state is marked first, with one atomic store, and only then anything is
// flushed: the data path sees it before anything is freed. In the failed state
//
//	posts                   | fail at once, with a [Failure]
//	verbs that allocate,    | likewise
//	modify or ask           |
//	verbs that release      | succeed; the backend is told behind the scenes
//	Poll                    | gives a WR_FLUSH_ERR for each request that was
//	                        | posted and not completed, then the Failure
//	Arm, Wait               | nil while Poll has something to give, then the
//	                        | Failure; a Wait under way is woken
//	NextEvent               | DEVICE_FATAL once, unless the backend's own was
//	                        | delivered, then the Failure; ErrClosed once closed
//
// Every [Failure] wraps [hca.ErrIO], the one sentinel, and nothing else: what
// the device died of must not be taken for an error of the call.
//
// # The book of requests
//
// Each queue has a ring of the WR IDs that are posted and not completed, as
// long as the queue is deep, so a post allocates nothing; a queue whose book is
// full is full. A completion strikes its request off the book; one whose
// request is in no book is of an earlier life of that queue (before a reset, or
// of a predecessor with the same QPN): it is dropped and counted. A post that
// is under way when the device fails answers for itself: what it reports as
// taken is flushed, or was completed, and nothing else is. Within one queue
// completions are told apart by their IDs; on a CQ that serves both queues of a
// QP a failed request is looked for among the sends first.
//
// # Verbs that hang
//
// A verb that may block according to the contract runs on a goroutine of its own. Its
// caller is released with [ErrStuck] after Options.VerbTimeout, or after AHTimeout or
// HostTimeout if the verb waits for more than the device. If the device fails first,
// the caller is released with the Failure. The goroutine is abandoned and counted, and
// an object that it creates late is closed again.
//
// At most Options.MaxStuck verbs are in the backend at once, and as many more that
// create an address handle, which wait for peers (R7). No peer can delay such a verb
// for longer than Options.AHStuck: then it counts among the other verbs, and a new peer
// gets its place.
//
// The timeout is counted in quarters. A stall of this process, however long, uses up
// one quarter, so it is not taken for a freeze of the device. Posts, Poll, Arm, Wait
// and Wake are called directly: they do not wait for hardware.
//
// # Releasing
//
// In the healthy state the backend has the last word on a release (ErrBusy). In
// the failed state the software side goes at once, and one goroutine closes the
// backend's objects in turn, each once its children are gone and the verbs on it
// have returned. [Device.Close] waits for that goroutine, at most VerbTimeout.
//
// If the backend hangs, the device remains a zombie, which keeps its threads and its
// memory. [Zombies] counts the zombies of an HCA; while there are too many, the owner
// opens no further instance ([Zombies.Room]).
//
// # Generations
//
// Each object gets a generation that no other object of this process has, so
// an ID of an earlier instance of the device names nothing in a later one (R20).
// An event about an object that is gone is dropped and counted; a CQ or AH of
// another instance, or of another device (R28), is refused with hca.ErrInvalid.
//
// # Locks
//
// Device.mu guards the registry and all life times; CQ.mu the books of the
// queues that complete there, taken once per Poll and twice per post, never
// while the backend is called. Neither is taken inside of the other.
package guard
