// Package device holds HCAs open and builds queue pairs on them.
//
// A [Device] has one goroutine, Run, which owns the HCA's machine
// (qprecovery.DeviceLadder) and publishes a [View] of what may be used. Run decides
// nothing: it gives the machine events, carries out its actions and reports their
// results. Users of the HCA subscribe to the view and reconcile with it: they hold the
// [Session] while they use it, release it when the view has another one or none, and the
// HCA is closed when all have released it. So reset, removal and return are one path, and
// no user needs to have heard every single event.
//
// # States
//
// The states are the machine's; qprecovery.DeviceState says what each may do. The view has
// a session in the healthy state alone. While a device is dropped, waited for or opened,
// the rung says why: it is reset (reset_device), it is gone or could not be reset
// (wait_for_device), or it is not wanted (suspend).
//
//	action of the machine  | what Run does                         | result
//	Open, CancelOpen       | at first it takes the locks by which  | Opened
//	                       | processes share the HCA; then it      |
//	                       | opens it                              |
//	Close                  | fails the session if it does not      | Closed
//	                       | work; takes it from the view; closes  |
//	                       | it when the users have released it    |
//	Abandon                | closes it without them                | Closed
//	RequestReset, Released | tells the coordinator                 | ResetPending, ResetEnded,
//	                       |                                       | GraceOver
//	Refresh                | reads the list                        | Listed
//	Check                  | queries a port                        | Checked
//	Entered, Ended, Paused | writes journal and log                |
//	GiveUp, ReportForeign  |                                       |
//	Answer                 | returns from Reset, Recover, Suspend, |
//	                       | Resume                                |
//
// # Health
//
// While the device is healthy, the machine has a port queried two seconds after the last
// answer, whether or not an interface is up. A query that reports an error of the device, or
// takes longer than 5 s, is a failure of the device like any other.
//
// # Closing
//
// Unless the device works and is closed by an order or for a suspension, its session is
// failed first, so that no user waits for hardware. The view loses its session, a reset is
// requested of the coordinator where one is wanted, and once the users have released the
// session the context is closed. Then the process is ready for the reset: the users of one
// process are one client. In error state the closing is waited for 20 ms only: a call that
// hangs in the device returns when it is reset, and not before.
//
// A user that has not released the session when the grace period is over is abandoned with
// a zombie. In a reset the coordinator decides that, in the process that leads it (package
// resetlock). If another process holds the device, the rung fails with its name, and is
// tried again. A zombie is freed by a reset before the device is opened again.
//
// # Goroutines
//
//	goroutine     | how many            | ends with
//	Run           | 1                   | its context, once the users have released the HCA
//	events        | 1 per open session  | the closing of the session
//	opening       | at most 1           | the Opener's answer, at first also that of
//	              |                     | the processes that share the HCA
//	closing       | 1 per session       | the release by the users, or their being abandoned
//	list          | at most 1           | the Lister's answer
//	check         | at most 1 per       | the port's answer, or after 5 s
//	              | session             |
//
// They answer by messages to Run's. An Opener that is stuck stays the only one; an
// HCA that it brings too late is closed, and so is another HCA than the known one.
//
// # Endpoints
//
// An [Endpoint] is one interface's share of a session: PD, MRs, CQs, the queue
// pair in RTS with its groups, and the address handles, built and closed in
// order.
package device
