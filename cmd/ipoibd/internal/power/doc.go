// Package power ends the daemon's use of the fabric before the system sleeps or
// shuts down, and starts it again on wake-up (R26). It listens to systemd-logind on the
// system bus and calls [Hooks]; it knows nothing of devices and interfaces.
//
// # The delay inhibitor
//
// logind announces sleep and shutdown (PrepareForSleep, PrepareForShutdown). It then
// waits until every holder of a delay inhibitor has released it, at most
// InhibitDelayMaxUSec. The inhibitor is a descriptor, released when its holder closes it
// or dies. [Watch] holds one while the system is awake, and releases it as soon as the hook
// has returned. The context of Suspend ends after 8/10 of the time that logind grants, and after
// 24 s at most. For a hook that does not return, logind itself stops waiting at the end of the
// time that it grants. It grants no inhibitor while it prepares for sleep, so Watch takes the
// next one on wake-up. A process that takes over inherits the descriptor, also while the system
// prepares for sleep: it then calls Suspend itself, and releases the inhibitor afterwards.
//
// # The machine
//
// A hook takes time, so the state of the system and the state of the daemon differ
// while one runs. Only one hook runs at a time. When none runs and the states differ, Watch
// calls the hook for the state of the system; after Stop it calls none:
//
//	daemon     | system         | action                      | daemon becomes
//	in service | will sleep     | Suspend                     | suspended
//	any        | will shut down | Stop                        | stopped
//	suspended  | is awake       | take the inhibitor, Resume  | in service
//
// A failed hook counts like any other, so Resume follows a Suspend that failed. A system
// that goes to sleep again while Resume runs cancels it.
//
// # Loss
//
// logind may start late, restart, or not exist; so may the bus. While either is missing,
// Watch holds no inhibitor and assumes that the system is awake, because it may have missed
// the wake-up. One line in the log reports the loss. Watch looks for logind again every
// second, or, while there is no bus, after 1, 2, 4 ... 60 s, each time on a new connection. When it
// finds logind, it starts from scratch: it asks logind what the system prepares for, and takes an
// inhibitor if that is nothing.
//
// # Trust
//
// Any local user may send a signal of any name directly to any client of the system bus,
// with descriptors in it. Watch accepts only signals from the bus itself and from the
// connection that owns logind's name. The connection that listens cannot receive
// descriptors, and the one that receives the inhibitor lives for one call. Connecting to
// the bus takes at most 5 s, and so does each exchange with it.
package power
