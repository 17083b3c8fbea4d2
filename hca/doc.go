// Package hca is the verbs contract of ipoibd: the vocabulary, the objects a
// backend must offer, the UD queue pair's state table and the errors. It
// imports nothing of ours and does no I/O.
//
// # Objects
//
// A [Device] is an opened context of one HCA. It gives out protection domains
// ([PD]), completion queues ([CQ]) and asynchronous events. A PD gives out
// registered memory ([MR]), address handles ([AH]) and UD queue pairs ([QP]).
// An object is created from plain data ([QPSpec], [CQSpec], [AHSpec]), so
// recovery can create it again from the same data. Children are closed before
// their parents: AH, multicast attachment, QP, CQ, MR, PD, Device. A parent
// that still has children refuses to close with [ErrBusy].
//
// # Memory
//
// Work requests name memory by address, as struct ibv_sge does, so registered
// memory lies outside the Go heap (mmap), is owned by the device and given out
// by [PD.AllocMR]. From the post to its completion the buffer belongs to the
// device; before and after it belongs to the caller.
//
// # Completion queues and the blast radius of a CQ error
//
// A CQ error (overrun, or the CQ_ERR event) voids the CQ: every QP attached to
// it must be destroyed with it. So a CQ is never shared between interfaces: one
// interface's overrun must not stop its neighbour. Within one interface the QP
// needs both its send and its receive CQ, so an error of either costs that one
// QP all the same; they are two because each is then polled by one goroutine
// without a lock between transmit and receive, and each is sized by its own
// queue's depth, which makes an overrun impossible while the accounting holds.
//
// # Waiting
//
// No method hands out a descriptor. [CQ.Wait] blocks until a completion arrives
// after [CQ.Arm], until a deadline, or until [CQ.Wake]. The order that loses no
// event is: Poll until empty, Arm, Poll once more, Wait.
//
// # Numbers and generations
//
// A [QP] has a number that peers know ([QP.Num]); every object has an
// [ObjectID] whose generation tells a recreated object from its predecessor
// of the same number. Events name objects by ObjectID only, never by pointer.
package hca
