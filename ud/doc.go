// Package ud is the engine between the host's frames and a UD queue pair: [Tx]
// carries Ethernet frames of a TAP to the fabric as IPoIB messages (RFC 4391),
// [Rx] carries messages of the fabric to the TAP. It does not translate
// addresses itself: [Peers], an immutable snapshot, maps destinations; frames
// that the snapshot cannot decide go to the [SlowPath].
//
// # Goals
//
// At most one copy between TAP and device: the same slot of registered memory
// holds the host's frame and, a few bytes further in, the message that the
// device sends or receives. No allocation per frame, batches of
// 64 in both directions, no channel and no lock on the data path. The only mutex
// guards the queue of injected messages.
//
// # Ownership
//
// Tx and Rx are each owned by one goroutine, which attaches a queue pair and
// then calls Pump again and again. To replace the queue pair the owner calls
// Detach and Attach; only frames that are posted or waiting to be posted are
// lost. The orderly sequence is: move the QP to ERR, Drain both (bounded), move
// it to RESET or close it, Detach. Each Attach has its own generation, which
// every work request ID carries, so completions from an earlier generation are
// recognised, counted and ignored.
//
// While detached, Pump returns [ErrDetached] at once: the host's frames stay in
// the TAP's queue, so a short recovery loses none of them. During a long recovery
// the owner takes the carrier down and drops the frames ([Tx.Discard]).
//
// # Slots
//
// A slot is free, held by the engine, or posted; the ring records which. Tx
// reads frames directly into free slots. At least every 16th send, and the last
// of every batch, is signaled; because a send queue completes in order, one
// completion frees all earlier slots. When no slot is free, or the queue pair's
// own queue is full, Tx waits for completions (10 ms at a time) and reads
// nothing: frames queue up in the TAP and none is lost here. When the host is
// silent, a timer makes Tx poll for completions every 10 ms while sends are
// outstanding.
//
// Rx keeps every buffer posted: the next Pump posts the buffers that could not be
// posted before and those whose receive failed. After a flush it posts none until
// Attach or Refill, because a queue pair in ERR would flush them again at once.
//
// # Which message goes where
//
// See [TxConfig], [RxConfig] and the tables in classify.go and inspect.go: the
// order of the checks is the order in which a frame with several faults is
// counted.
//
// On RoCE the source GID and the QPN identify the sender of a message, which therefore needs
// a GRH. On InfiniBand ([Rx.UseLIDs]) the source LID, without its path bits, and the QPN do: a
// unicast message within a subnet need not have a GRH. If there is one, it says whether the message
// was sent to a group.
//
// # Accounts
//
// Every frame is counted once on entry and once when it is done. In terms of the
// names in Counters, these sums hold whenever no Pump or Inject is running:
//
//	tx_read + tx_injected = tx_sent + tx_slow_path + sum(tx_drop_*) + sum(tx_wc_*)
//	                        + tx_outstanding + tx_queued
//	rx_received           = rx_delivered + rx_slow_path + rx_probe + rx_own_multicast + sum(rx_drop_*)
//	*_posts               = *_completions + *_taken_back + *_outstanding
//
// A failed completion counts in *_wc_<status>; a failed receive holds no message.
// *_completions counts the slots that the device returned, including the slots of
// unsignaled sends.
//
// # Large frames
//
// If the device supports large sends (hca.DeviceAttr.MaxTSO), the host sends frames of up to
// 64 KB and leaves checksums incomplete. Such a frame uses one slot, one large send (hca.LSO)
// and one completion, and counts once; tx_large counts these frames, and tx_segments their
// segments. The slow path gets only the first segment of a large frame, which then counts as
// tx_slow_path. The other segments are dropped, and tx_segment_drop_unresolved counts them. The
// checksum of a frame that is sent whole is filled in here, before anything inspects it.
//
// Received segments of one flow are written to the host as one frame. A device with large
// receives (hca.LRO) joins them. Without such a device, or if only a few segments arrive at a
// time, they are joined here within a batch (package coalesce). A large receive uses one slot
// and one completion, but each of its messages counts as received, and as delivered or dropped.
// rx_merged counts the messages that were joined to the previous one.
//
// # Recorders
//
// A packet capture is a [Recorder], which gets a copy of each frame and message ([Tx.Record],
// [Rx.Record]). Frames are recorded as they are read and as they are written, messages as they
// are posted and as they are received. A large frame counts as one. Without a recorder, a batch
// costs one atomic load for each of these places.
//
// # Snapshots and address handles
//
// A frame is routed by the snapshot current after it was read. [Tx.Epoch] is
// the oldest snapshot that may have routed a frame that is not yet completed,
// so an address handle may be destroyed once its last snapshot is older.
package ud
