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
//	Poll, Arm, Wait         | fail immediately; a blocked Wait is woken
//	NextEvent               | returns DEVICE_FATAL once, unless the backend's own
//	                        | was delivered, then the Failure; ErrClosed once closed
//
// A fast path that was created before ([hca.FastPath]) still reaches the backend. It carries until it, or its
// QP, is closed.
//
// Every [Failure] wraps only the sentinel [hca.ErrIO]. It does not wrap its cause, which
// a caller could mistake for an error of the call.
//
// # Posted requests
//
// The guard does not know which requests are posted. The poster does: a ring of package ud
// records the owner of each of its slots, and every work request ID carries the ring's
// generation. So when Poll returns the Failure, the ring completes what it has posted with
// WR_FLUSH_ERR (R18), and it ignores completions from before a reset (R20). A second record
// here would cost each request two locks and a search, to no other effect.
//
// # Verbs that hang
//
// A verb that may block according to the contract runs on its own goroutine, unless the backend says that its
// verbs never block ([hca.DeviceAttr.NeverBlocks]). Its caller
// gets [hca.ErrStuck] after Options.VerbTimeout, or after AHTimeout or HostTimeout if the
// verb waits for more than the device. If the device fails first, the caller gets the
// Failure. The goroutine is abandoned and counted, and an object that it creates late is
// closed again.
//
// At most Options.MaxStuck verbs are in the backend at once, and as many more that
// create an address handle, which wait for peers (R7). No peer can delay such a verb
// for longer than Options.AHStuck. After that time it counts among the other verbs, and a
// new peer gets its place.
//
// [Open] gives open_device a limit in the same way. An opening that is abandoned counts as a zombie.
//
// Drivers may hold query_port back under a lock of the host (rtnl), which is no fault of the
// device. So when query_port exceeds HostTimeout, the guard calls alloc_pd, and goes on waiting
// while that is answered, for up to Options.HostStuck (R7). The same applies to attach_mcast of the
// software HCA.
//
// The timeout is measured in quarters. A stall of this process, however long, consumes at
// most one quarter, so it is not mistaken for a freeze of the device. Posts, Poll, Arm,
// Wait and Wake are called directly, because they do not wait for hardware. If one of them
// hangs nevertheless, its caller hangs too. Whoever waits for the caller gives the call up with
// [Device.AbandonCall].
//
// # Releasing
//
// In the healthy state a release returns the result of the backend (ErrBusy). In the
// failed state an object is closed for its caller immediately. One goroutine then closes
// the backend's objects, each after its children are closed and the verbs on it have
// returned. [Device.Close] waits for that goroutine for at most VerbTimeout. While a post or a
// method of a CQ hangs, it closes nothing, because the call may use any object and any memory.
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
// Device.mu guards the maps of objects and the state of all objects. Posts, Poll, Arm and
// Wait take no lock.
package guard
