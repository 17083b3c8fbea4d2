// Package hca is the verbs contract of ipoibd: the vocabulary, the objects that
// a backend implements, the state table of UD queue pairs, and the errors. It
// imports no other package of this module and does no I/O.
//
// # Objects
//
// A [Device] is an opened context of one HCA. It creates protection domains
// ([PD]) and completion queues ([CQ]) and reports asynchronous events. A PD
// creates registered memory ([MR]), address handles ([AH]) and UD queue pairs
// ([QP]).
// An object is created from plain data ([QPSpec], [CQSpec], [AHSpec]), so
// recovery can create it again from the same data. Children are closed before
// their parents: AH, multicast attachment, QP, CQ, MR, PD, Device. Closing a
// parent that still has children returns [ErrBusy].
//
// # Memory
//
// Work requests refer to memory by address, as struct ibv_sge does. Registered
// memory therefore lies outside the Go heap (mmap); the device owns it, and
// [PD.AllocMR] allocates it. A buffer belongs to the device from the post to the
// completion, and to the caller otherwise.
//
// # Completion queues and the scope of a CQ error
//
// A CQ error (overrun, or the CQ_ERR event) makes the CQ unusable: it must be
// destroyed, together with every QP attached to it. Interfaces therefore never
// share a CQ, so that an overrun of one does not stop another. Within one
// interface the QP needs both its send CQ and its receive CQ, so an error of
// either costs that one QP. They are still separate, for two reasons: each is
// polled by one goroutine, without a lock between transmit and receive; and each
// has the size of its own work queue, so it cannot overrun while the number of
// posted requests is accounted for correctly.
//
// # Queues
//
// A QP may have several queues ([QPSpec].Queues, [CreateQueues]), each a send queue and a
// receive queue with a pair of CQs of its own, so that goroutines can send and receive in
// parallel through one number. State, number and groups belong to the QP: a CQ error of any
// queue costs all of them.
//
// # Checksums, large sends and large receives
//
// The payload of UD messages is opaque to a device, with three exceptions, all for messages
// of IP over InfiniBand (RFC 4391): it may fill in and verify the checksums of IP, TCP and
// UDP ([SendIPCsum], [WCFlagIPCsumOK]), cut one large TCP or UDP frame into messages ([LSO]),
// and join the messages of a flow in one receive ([LRO]). [DeviceAttr] says which of these a
// device supports; what it does not support is refused, never ignored.
//
// # Waiting
//
// No method returns a file descriptor. [CQ.Wait] blocks until a completion
// arrives after [CQ.Arm], until a deadline, or until [CQ.Wake]. To miss no
// completion: Poll until empty, Arm, Poll once more, Wait.
//
// # Numbers and generations
//
// A [QP] has a number that peers send to ([QP.Num]). Every object that events
// refer to has an [ObjectID], whose generation distinguishes a recreated object
// from its predecessor with the same number. Events identify objects by ObjectID,
// never by pointer.
package hca
