// Package softqp is the engine of the software HCA's UD queue pairs. It decides what
// a state permits, which request a packet consumes, and which completion results. It
// is pure: no goroutine, lock, clock or I/O. The shell around it is package soft.
//
// # Two sides
//
// A [QP] has a send side and a receive side, so that transmit and receive need
// not wait for each other. The comment of every method names its side. The shell
// guards each side with its own lock, and holds both for methods marked "both
// sides". A side does not write to the other: a send error moves only the send
// side (to SQE), a receive error only the receive side (to ERR), and [QP.Settle]
// then moves the send side to ERR. Until then the completions of the receive error
// are held back, so that no caller can see ERR and then post a send that succeeds.
// [QP.Query] reports a single state.
//
//	from        | to    | cause                               | effect
//	any         | RESET | Modify                              | requests dropped, no completions
//	any         | ERR   | Modify                              | both queues flushed
//	RTR.. SQE   | ERR   | receive too short or not permitted  | that receive fails, both queues flushed
//	RTS         | SQE   | send not permitted or too long      | that send fails, later ones flushed
//	any         | ERR   | Follow                              | both queues flushed
//	RTS, SQD    | SQE   | Follow                              | sends flushed
//	others      |       | Modify, see [hca.UDTransition]      |
//
// # Sending
//
// A request stays in the send queue until it is completely processed. [QP.Fill]
// builds a [Batch] of datagrams from the requests at the head. The datagrams refer
// to the payload in place. Consecutive datagrams that the transport can send as one message
// form a [Train]. The index of a datagram in its train is its IPv4 identification, which its
// ICRC covers. The shell passes the trains to the network, which may
// accept only some, and reports the number to [QP.Finish], which completes the finished
// requests. Datagrams that were not accepted are built again, with the same PSNs unless
// another queue or the fast path has taken some since ([PSNs]). A message that does not become a
// datagram (dropped, failed, or looped back to this device) becomes the [Tail] of the batch;
// there is at most one.
//
// Package segment cuts a large send ([hca.LSO]) and fills in checksums
// ([hca.SendIPCsum]). A batch copies the payload, so that a train is in one piece: the kernel
// takes that faster than a list of two entries for each datagram. A request that does not end
// within a batch continues in the next one, with the next segment or, if it is replicated, the
// next peer. Where more follows, a batch ends between two trains rather than within one.
//
// # Receiving
//
// [QP.Deliver] checks state, P_Key and Q_Key, then writes the GRH area and the
// payload to the receive at the head of the queue. It returns a [Reason] for every
// packet. A dropped packet consumes no receive.
//
// If the QP has large receives ([hca.QPSpec].LRO), the receive that was posted last is used: it
// is long, and its memory is most likely in the processor's cache. It stays open, and the next
// messages of its flow are appended to it by the rules of package join. Only one receive is
// open at a time. It completes when a message does not fit, or with the next call of RecvDone.
// The shell calls RecvDone before it unlocks the receive side, so no message waits for another.
// The checksum of a message is computed at most twice: as the next one of an open receive, and
// as the first one of another. A message is not joined if it is in several pieces, if it was
// sent to a group, or if its receive has several entries or no room for two such messages.
//
// # Completions
//
// Completions collect on their side until the shell moves them ([QP.SendDone],
// [QP.RecvDone]) to the [CQ]. It does so before it unlocks the side, so a reset
// finds every completion that it must remove in the CQ.
//
// Limits: MaxSGE entries in a gather list, MaxTSO bytes in a large send, hca.Batch datagrams
// in a batch, join.MaxSegments messages and join.MaxBytes in a large receive.
package softqp
