// Package device holds HCAs open and builds queue pairs on them.
//
// A [Device] has one goroutine, Run, which opens the HCA, publishes it with its
// ports' attributes as a [View], follows its asynchronous events, and after a
// fatal one starts over. Those who use the HCA subscribe to the view and
// reconcile with it: they hold the [Session] while they use it, let go when the
// view has another one, and the HCA is closed when all have let go. So device
// reset, removal and return are one path, and nobody needs to have heard every
// single event.
//
// An [Endpoint] is one interface's share of a session: PD, MRs, CQs, the queue
// pair in RTS with its groups, and the address handles, built and closed in
// order.
package device
