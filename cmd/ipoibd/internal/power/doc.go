// Package power ends the daemon's use of the fabric before the system sleeps or
// shuts down, and starts it again on wake-up (R26). It listens to systemd-logind on the
// system bus and calls [Hooks]; it knows nothing of devices and interfaces.
//
// # The delay inhibitor
//
// logind announces sleep and shutdown (PrepareForSleep, PrepareForShutdown). It then
// waits until every holder of a delay inhibitor has released it, at most
// InhibitDelayMaxUSec. The inhibitor is a descriptor, released when its holder closes it
// or dies. [Watch] holds one while the system is awake. The hook gets 8/10 of the
// time that logind grants. The inhibitor is released as soon as the hook has returned,
// and in any case after 9/10 of that time, and after 30 s. logind grants no inhibitor
// while it prepares for sleep, so Watch takes the next one on wake-up.
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
// the wake-up. One line in the log reports the loss. Watch tries again to reach the bus,
// after pauses that double from 1 s to 1 min. For each new connection and each new logind
// it starts from scratch: it asks logind what the system prepares for, and takes an
// inhibitor if that is nothing.
//
// # Trust
//
// Any local user may send a signal of any name directly to any client of the system bus,
// with descriptors in it. Watch accepts only signals from the bus itself and from the
// connection that owns logind's name. The connection that listens cannot receive
// descriptors, and the one that receives the inhibitor lives for one call. Each exchange
// with the bus takes at most 5 s.
package power
