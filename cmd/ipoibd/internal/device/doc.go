// Package device holds HCAs open and builds queue pairs on them.
//
// A [Device] has one goroutine, Run, which owns the HCA's ladder
// (qprecovery.DeviceLadder) and publishes what there is to use as a [View]. Those who
// use the HCA subscribe to the view and reconcile with it: they hold the [Session]
// while they use it, let go when the view has another one or none, and the HCA is
// closed when all have let go. So reset, removal and return are one path, and
// nobody needs to have heard every single event.
//
// # States
//
// The states are the ladder's. The view has a session in the first alone.
//
//	state                | the HCA is                | left by
//	(starting)           | tried once a second,      | the first opening
//	                     | unless suspended          |
//	healthy              | open                      | a fatal event, EIO, a verb that hangs; Ask;
//	                     |                           | a reset that others asked for; an order;
//	                     |                           | its removal; Suspend
//	dropping, releasing  | let go, for a reset or    | all users have let go, it is closed, and
//	                     | because it is gone        | the reset (if any) has ended
//	opening, retrying    | opened                    | the Opener and the ports have answered
//	pausing              | closed, for a while       | the back-off, or an order
//	waiting              | not there, or not to be   | the list, every 10 s; after GiveUpAfter
//	                     | opened                    | by giving up
//	given_up             | closed                    | Recover
//	suspending           | let go                    | all users have let go, it is closed
//	suspended            | closed                    | Resume
//
// # Health
//
// While the device is healthy, the ladder has a port queried every two seconds,
// whether or not an interface is up. A query that fails, or does not return within
// the time limit of verbs, is a failure of the device as any other is.
//
// # Letting go
//
// Unless the device works and somebody wants it closed all the same (an order, a
// suspension), its session is failed first, so that nobody waits for hardware.
// Then a reset is requested of the coordinator, the view loses its session, and
// once the users have let go the context is closed, which is what "ready" is: the
// users of one process are one client. In error state the closing is waited for
// 20 ms only: what hangs in the device returns when it is reset, and not before.
//
// Who has not let go when the grace period is over is left behind with a zombie. In
// a reset the coordinator says so, in the process that leads it (see package
// resetlock). If another process holds the device, the rung fails with its name, and
// is tried again. A zombie of a removal or a suspension is freed by a reset before the
// device is opened again.
//
// # Goroutines
//
//	goroutine     | how many            | ends with
//	Run           | 1                   | its context, once the users have let go
//	events        | 1 per open session  | the closing of the session
//	opening       | at most 1           | the Opener's answer, at first also that of
//	              |                     | the processes that share the HCA
//	closing       | 1 per session       | the users letting go, or being left behind
//	list          | at most 1           | the Lister's answer
//	check         | at most 1 per       | the port's answer, or the time limit of verbs
//	              | session             |
//
// They answer by messages to Run's. An Opener that is stuck stays the only one; an
// HCA that it brings too late is closed, and so is one that is not the same
// although no list told.
//
// # Endpoints
//
// An [Endpoint] is one interface's share of a session: PD, MRs, CQs, the queue
// pair in RTS with its groups, and the address handles, built and closed in
// order.
package device
