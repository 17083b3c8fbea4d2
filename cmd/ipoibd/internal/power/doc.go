// Package power ends the daemon's use of the fabric before the system sleeps or
// shuts down, and starts it again on wake-up. It listens to systemd-logind on the
// system bus and calls [Hooks]; it does not know devices and interfaces.
//
// # The delay inhibitor
//
// logind announces sleep and shutdown (PrepareForSleep, PrepareForShutdown) and
// then waits until every holder of a delay inhibitor has released it, at most
// InhibitDelayMaxUSec. The inhibitor is a descriptor: it is released when it is
// closed, also by the death of its holder. [Watcher.Run] holds one while the
// system is awake. Of the time that logind grants, the hook gets 8/10, and after
// 9/10 the inhibitor is released, whether the hook has returned or not; in no case
// later than after 30 s. While logind prepares it grants no inhibitor: the
// watcher asks again when the system is awake, or when logind is back.
//
// # The machine
//
// What the system is about to do (awake, sleeping, shutting down) and what the
// daemon is ready for are two things, since a hook takes its time. One hook runs
// at a time. Where none runs and the two differ, the hook that belongs to the
// system's state is called; after Stop, none is:
//
//	daemon     | system         | action                      | ready for
//	serving    | will sleep     | Suspend                     | sleep
//	any        | will shut down | Stop                        | shutdown
//	suspended  | is awake       | take the inhibitor, Resume  | service
//
// The inhibitor is released when Suspend or Stop has returned. A hook that fails
// counts as called: Resume follows a Suspend that failed. A system that goes to
// sleep again while Resume runs cancels it.
//
// # Loss
//
// logind may start late, restart or never be there; so may the bus. While either
// is missing the watcher holds no inhibitor, one line in the log says so, and it
// tries to reach the bus after a pause that doubles from 1 s to 1 min. When both
// are back it takes the inhibitor and asks logind what it is preparing, since it
// may have missed a signal. A daemon that is suspended while nothing can report
// the wake-up resumes after 30 s of a running clock, which stands still in sleep.
//
// # Trust
//
// Any local user may send a signal of any name straight to any client of the
// system bus, with descriptors in it. The watcher accepts signals only from the
// bus itself and from the connection that owns logind's name; the connection that
// listens receives no descriptors, and that of the inhibitor lives for one call.
// A call that is not answered within 5 s ends its connection. go-systemd's login1
// does none of this: its calls have no time limit, its one connection receives
// descriptors, it accepts the signals of any sender, and it does not report that
// logind has restarted or what logind prepares.
package power
