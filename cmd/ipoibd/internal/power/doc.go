// Package power lets go of the fabric before the system sleeps or ends, and
// takes it up again on wake-up. It listens to systemd-logind on the system bus
// and calls [Hooks]; it knows nothing of devices and interfaces.
//
// # The delay inhibitor
//
// logind announces sleep and shutdown (PrepareForSleep, PrepareForShutdown) and
// then waits until those who hold a delay inhibitor have given it back, at most
// InhibitDelayMaxUSec. The inhibitor is a descriptor: who closes it, or dies,
// has given it back. [Watcher.Run] holds one while the system is awake. Of the
// time that logind grants, 8/10 are the hook's and after 9/10 the inhibitor
// goes, whether the hook has returned or not; and never more than 30 s. While
// logind prepares it grants none: one that was denied is asked for again when
// the system is awake, or logind is back.
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
// When Suspend or Stop has returned, the inhibitor goes. A hook that fails has
// nevertheless been called: Resume follows a Suspend that failed. A system that
// goes to sleep again while Resume runs cancels it.
//
// # Loss
//
// logind may start late, restart or never be there; so may the bus. While either
// is missing no inhibitor is held, one line in the log says so, and the bus is
// looked for after a pause that doubles from 1 s to 1 min. When both are back the
// inhibitor is taken and logind is asked what it is preparing, for what was
// said meanwhile. A daemon that is suspended while nobody can tell it of the
// wake-up resumes after 30 s of a running clock, which stands still in sleep.
//
// # Trust
//
// Any local user may send a signal of any name straight to any client of the
// system bus, with descriptors in it. Signals are taken from the bus itself and
// from the connection that owns logind's name only, and the connection that
// listens does not accept descriptors; that of the inhibitor lives for one call.
// A call that is not answered within 5 s ends its connection. go-systemd's login1
// does none of this: its calls have no time limit, its one connection accepts
// descriptors, it takes the signals of any sender, and it does not report that
// logind has restarted or what logind prepares.
package power
