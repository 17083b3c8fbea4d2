// Package device holds HCAs open.
//
// A [Device] has one goroutine, Run, which owns the machine of the HCA
// (qprecovery.DeviceLadder). The machine itself calls the locks by which processes that share
// the HCA agree about its resets (package resetlock). Run decides nothing: it gives the machine
// events, carries out its actions and reports the results. It publishes a [View] of what may be used. Users of the HCA
// subscribe to the view and reconcile with it: they hold the [Session] while they use it,
// and release it when the view shows another one or none. When all users have released it,
// the HCA is closed. So reset, removal and return are one path, and users need not see
// every single event.
//
// # States
//
// The states are the machine's; qprecovery.DeviceState says what each allows. The view has
// a session only in the healthy state. While a device is dropped, waited for or opened,
// the rung says why: it is being reset (reset_device), it is gone or could not be reset
// (wait_for_device), or it is suspended (suspend).
//
//	action of the machine  | what Run does                         | result
//	Open, CancelOpen       | opens the HCA                         | Opened
//	Close                  | fails the session if it does not      | Closed
//	                       | work; takes it from the view; closes  |
//	                       | it when the users have released it    |
//	Abandon                | closes it without them, or no longer  | Closed, or none
//	                       | waits for the opening                 |
//	ResetAction            | resets the HCA, or writes a log       | ResetEvent, or none
//	Refresh                | reads the list                        | Listed
//	Check                  | queries the ports, publishes them     | Checked
//	Entered, Ended, Paused | writes journal and log                |
//	GiveUp, ReportForeign  |                                       |
//	Answer                 | returns from Reset, Recover, Suspend, |
//	                       | Resume                                |
//
// Run publishes view and status together. Why there is no session follows from the status of
// the machine, and from why the last opening or reset failed, which Run keeps.
//
// The lock files are named after the identity of the device. So the machine joins the other
// processes when the device first appears in a list, before the device itself is opened.
//
// # Health
//
// While the device is healthy, the machine has its ports queried two seconds after the last
// answer, and after each event of a port, whether or not an interface is up. The view shows what
// the last query has returned. A query that reports an error of the device, or hangs (package
// guard), is a failure of the device like any other.
//
// # Closing
//
// If the device does not work, its session is failed first, so that no user waits for
// hardware. The view loses its session, a reset is requested if one is needed, and the
// context is closed once the users have released the session. Then the process is ready for
// the reset; all users in one process count as one client. In error state Run waits only
// 20 ms for the context to close: a verb that hangs in the device does not return before
// the device is reset.
//
// Users that have not released the session when the grace period ends are abandoned: their
// handles become zombies. During a reset, the leading process decides when. If another process still holds the device, the rung fails, names that
// process, and is retried. A reset frees zombies before the device is opened again.
//
// # Goroutines
//
//	goroutine | how many           | ends with
//	Run       | 1                  | its context, once the users have released the HCA
//	session   | 1 per opening      | a failed opening, at the latest after 10 s; or the closing
//	reset     | at most 1          | the return of Config.Reset or Complete
//	list      | at most 1          | the answer of the Lister
//	check     | 1 per session, if  | the ports' answers, or after a minute
//	          | its verbs block    |
//
// They report to Run by messages. The goroutine of a session opens it, reads its events until the
// users have released it or were abandoned, and closes it. A call of the Opener that is stuck is
// abandoned and counts as a zombie (package guard). An HCA that it returns too late is closed, and
// so is an HCA other than the known one.
package device
