// Package ud is the engine between the host's frames and a UD queue pair: [Tx]
// carries Ethernet frames of a TAP to the fabric as IPoIB messages (RFC 4391),
// [Rx] carries messages of the fabric to the TAP. It translates no addresses
// itself: [Peers], an immutable snapshot, says where a frame goes; what the
// snapshot does not decide goes to the [SlowPath].
//
// # Goals
//
// One copy at most between TAP and device: a slot of registered memory holds a
// frame as the host reads or writes it and, a few bytes further in, the message
// as the device does. No allocation per frame, batches of 64 both ways, no
// channel and no lock on the path of a frame. The only mutex guards the queue of
// injected messages.
//
// # Ownership
//
// Tx and Rx are each owned by one goroutine, which attaches a queue pair and
// then calls Pump again and again. To replace the queue pair the owner calls
// Detach and Attach: nothing else is lost but what was posted. The orderly way
// is: move the QP to ERR, Drain both (bounded), move it to RESET or close it,
// Detach. Each Attach has a generation of its own, which every work request ID
// carries: a completion of an earlier one is recognised, counted and ignored.
//
// While detached, Pump returns [ErrDetached] at once: the host's frames stay in
// the TAP's queue, which is what a short recovery wants. For a long one the owner
// takes the carrier down and has the frames dropped ([Tx.Discard]).
//
// # Slots
//
// A slot is free, in the engine's hands, or posted; the ring keeps the book.
// Tx reads frames directly into free slots. Sends ask for a completion at least
// every 16th and at the end of every batch; since a send queue completes in
// order, one completion frees all slots before it. When no slot is free, or the
// queue pair's own queue is full, Tx waits for completions (10 ms at a time)
// and reads nothing, so the TAP's queue absorbs and no frame is lost here. When
// the host is silent, a timer makes Tx look for completions every 10 ms until
// none is outstanding.
//
// Rx keeps every buffer posted: what could not be posted, and what came back
// with an error, is posted by the next Pump. Buffers that came back flushed wait
// for Attach or Refill, since a queue pair in ERR would flush them at once again.
//
// # Which message goes where
//
// See [TxConfig], [RxConfig] and the tables in classify.go and inspect.go: the
// order of the checks is the order in which a frame with several faults is
// counted.
//
// A received message needs a GRH, for the source GID that names its sender.
// RoCE always has one. On InfiniBand a unicast message within a subnet may come
// without; it is dropped as NoGRH until Peers can find a sender by its LID.
//
// # Accounts
//
// Every frame is counted once where it comes in and once where it ends. With
// the names of Counters, and at every moment when no Pump or Inject is under way:
//
//	tx_read + tx_injected = tx_sent + tx_slow_path + sum(tx_drop_*) + sum(tx_wc_*)
//	                        + tx_outstanding + tx_queued
//	rx_received           = rx_delivered + rx_slow_path + rx_probe + sum(rx_drop_*)
//	*_posts               = *_completions + *_taken_back + *_outstanding
//
// A completion without success counts in *_wc_<status>; of a receive it holds no
// message. Completions count slots that the device gave back, those of unsignaled
// sends included.
//
// # Snapshots and address handles
//
// Frames are decided by the snapshot in force when they were read. [Tx.Epoch]
// is the oldest snapshot that a frame not yet completed may have been decided
// by, so an address handle may be destroyed once its last snapshot is older.
package ud
