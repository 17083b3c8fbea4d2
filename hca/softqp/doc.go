// Package softqp is the engine of the software HCA's UD queue pairs: what a
// state lets pass, which request a packet consumes, which completion comes of
// it. It is pure: no goroutine, lock, clock or I/O. The shell around it is
// package soft.
//
// # Two sides
//
// A [QP] has a send side and a receive side, so that transmit and receive need
// not wait for each other. Every method says which side it belongs to; the
// shell guards each side by a lock of its own and holds both for the methods
// that say "both sides". A side writes nothing of the other: a send error moves
// only the send side (to SQE), a receive error only the receive side (to ERR),
// and [QP.Settle] carries the latter over to the send side. Until then the
// completions of the receive error are held back, so nobody can know of ERR and
// post a send that succeeds. [QP.Query] sees one state.
//
//	from        | to    | cause                               | what happens
//	any         | RESET | Modify                              | requests dropped, no completions
//	any         | ERR   | Modify                              | both queues flushed
//	RTR.. SQE   | ERR   | receive too short or not permitted  | that receive fails, both queues flushed
//	RTS         | SQE   | send not permitted or too long      | that send fails, later ones flushed
//	others      |       | Modify as [hca.UDTransition] has it |
//
// # Sending
//
// A request waits in the send queue until everything it asks for is done.
// [QP.Fill] turns the requests at the head into a [Batch] of datagrams,
// referring to the payload where it lies; the shell hands the datagrams to the
// network, as many as it takes, and reports their number to [QP.Finish], which
// completes the requests that are done with. What did not go out is built
// again, with the same PSN. A request that ends a batch in another way than by
// a datagram (dropped, failed, looped back to this device) is the batch's
// [Tail]; there is at most one.
//
// # Receiving
//
// [QP.Deliver] checks state, P_Key and Q_Key, then places GRH area and payload
// into the receive at the head of the queue. Whatever it refuses it names by a
// [Reason]. A packet refused consumes no receive.
//
// # Completions
//
// They gather on their side until the shell takes them ([QP.SendDone],
// [QP.RecvDone]) to the [CQ], before it releases the side: so a reset finds in
// the CQ every completion that it must remove.
//
// Limits: MaxSGE entries of a gather list, hca.Batch datagrams of a batch.
package softqp
