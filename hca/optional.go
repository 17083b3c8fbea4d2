package hca

import (
	"errors"
	"fmt"
	"net/netip"
)

// The interfaces in this file are optional capabilities of a backend. A wrapper of a
// backend, such as package guard, implements all of them: it asks the backend through
// the function next to the interface, which returns zero, or an error, if the backend
// lacks the capability.

// WireReporter is a [Device] that reports when its underlay cannot take packets.
type WireReporter interface {
	// WireBlocked returns a count that grows whenever a send finds the underlay's
	// send buffer full, whether the send then waits or is dropped. If the count has
	// changed since the previous reading, delays in between say nothing about the
	// device. WireBlocked does not block, and any goroutine may call it.
	WireBlocked() uint64
}

// WireBlockedOf returns the count of a device, or zero if it is not a [WireReporter].
func WireBlockedOf(dev Device) uint64 {
	if r, ok := dev.(WireReporter); ok {
		return r.WireBlocked()
	}
	return 0
}

// PathRefuter is a [Device] that learns from unauthenticated messages of the network how much its paths
// carry (PathLimit.Reported).
type PathRefuter interface {
	// RefutePath says that a message with a UD payload of some bytes has just reached a destination. For some seconds,
	// the device then ignores reports that the path carries less. RefutePath does not block, and any goroutine may
	// call it.
	RefutePath(to netip.Addr, payload int)
}

// RefutePath is RefutePath of a device, if it is a [PathRefuter].
func RefutePath(dev Device, to netip.Addr, payload int) {
	if r, ok := dev.(PathRefuter); ok {
		r.RefutePath(to, payload)
	}
}

// Stray is a sender of datagrams for a QPN that no QP of the device has. The sender
// uses an address from before a restart, or a forged one.
type Stray struct {
	Number uint64 // number of its latest such datagram, counted from 1 over all senders; 0: empty entry
	PKey   PKey
	QKey   QKey // as received: the sender may not know the right one
	SGID   GID
	SrcQPN QPN
}

// MaxStrays bounds the senders that a device remembers, for the interfaces of all its
// partitions together. A handful of hosts send to one that has restarted; more at a
// time are forged.
const MaxStrays = 32

// Strays are the latest senders, all different and in no order. A sender that was
// displaced returns with its next datagram.
type Strays [MaxStrays]Stray

// StrayReporter is a [Device] that reports the senders of such datagrams.
type StrayReporter interface {
	// Strays returns the latest senders since the device was opened. A sender is new
	// if its Number is above every Number of the previous reading. ok is false for a
	// wrapper of a device that is not a StrayReporter. Strays does not block, and
	// any goroutine may call it.
	Strays() (s Strays, ok bool)
	// NotifyStrays makes the device call f after each such datagram, until stop is called. f must not block,
	// and must not call the device. NotifyStrays does not block, and any goroutine may call it and stop. A
	// wrapper of a device that is not a StrayReporter never calls f.
	NotifyStrays(f func()) (stop func())
}

// StraysOf returns the stray senders that a device reports; ok is false if it is not a
// [StrayReporter].
func StraysOf(dev Device) (s Strays, ok bool) {
	if r, reports := dev.(StrayReporter); reports {
		return r.Strays()
	}
	return Strays{}, false
}

// NotifyStraysOf is NotifyStrays of a device, if it is a [StrayReporter].
func NotifyStraysOf(dev Device, f func()) (stop func()) {
	if r, reports := dev.(StrayReporter); reports {
		return r.NotifyStrays(f)
	}
	return func() {}
}

// QueueCreator is a [PD] that creates QPs with more than one queue, so that goroutines can
// send and receive in parallel through one QPN.
type QueueCreator interface {
	// CreateQueues creates a UD queue pair in RESET with spec.Queues queues, and returns it
	// with them; the QP itself is the first one. The requests of queue i complete on cqs[i];
	// all CQs are different and belong to the same device. Sends of one queue are ordered
	// among each other only. The device chooses the queue that receives a message, always
	// the same one for the messages of one sender. But it delivers a message that the QP
	// sends to itself to the queue that it was sent from, so that each queue can be probed.
	// A copy of a multicast is received by one queue. Errors: as PD.CreateQP. May
	// block.
	CreateQueues(spec QPSpec, cqs []CQPair) (QP, []Queue, error)
}

// CreateQueues creates a QP with one queue for each pair of CQs, which must be spec.Queues.
// More than one are refused with ErrInvalid if pd is not a [QueueCreator].
func CreateQueues(pd PD, spec QPSpec, cqs []CQPair) (QP, []Queue, error) {
	creator, ok := pd.(QueueCreator)
	switch n := len(cqs); {
	case n != max(1, spec.Queues) || n > 1 && !ok:
		return nil, nil, &VerbError{
			Verb: "create_qp",
			On:   fmt.Sprintf("with %d queues and %d pairs of CQs", spec.Queues, n),
			Err:  ErrInvalid,
		}
	case n > 1:
		return creator.CreateQueues(spec, cqs)
	}
	qp, err := pd.CreateQP(spec, cqs[0].Send, cqs[0].Recv)
	if err != nil {
		return nil, nil, err
	}
	return qp, []Queue{qp}, nil
}

// FastPathSpec describes the fast path of a QP. The user must hold the fast path while other stations than the host are behind
// the netdev, or while the sources of frames must be checked. The device decides up to which length it carries packets.
type FastPathSpec struct {
	Netdev    int     // index of a TAP, in the device's network namespace
	MAC       [6]byte // of the TAP; frames from other MACs use the queues
	SGIDIndex int     // the QP's address
}

// FastPath carries small unicast IPoIB messages of a QP between a netdev and the wire, bypassing its queues. All others use the
// queues. It carries only in RTS. It does not carry a message while it knows of an earlier one of the same flow in the queues; one
// that stays there too long counts as lost. It assumes that a received message has reached the host once the owner of the CQ
// polls again or waits. A verb that leaves RTS returns only after the fast path has stopped; what it has carried by then may
// still be in the kernel's queues. Any goroutine may call the methods. They do not wait for the network; AddPeer, RemovePeer and
// Close make system calls.
type FastPath interface {
	// AddPeer adds a peer. The netdev's host knows it by this MAC and by no other. Messages from the peer have the QPN and the
	// address of to, whose handle must stay open until RemovePeer or Renew. Errors: ErrInvalid, ErrNoMemory if there are too many, the
	// system's.
	AddPeer(mac [6]byte, to UDDest) error
	// Renew gives a peer another handle, and reports whether it is one for the same destination. Otherwise nothing changes: the
	// peer must be removed and added again, and its frames take the queues meanwhile.
	Renew(mac [6]byte, to UDDest) bool
	// RemovePeer removes a peer, if it is there, and returns its last counts, also after Close. Nothing is carried to it or
	// from it afterwards.
	RemovePeer(mac [6]byte) (last FastPathCounts, err error)
	// PeerCounts returns the counts of a peer since AddPeer. After Close, the last ones remain until RemovePeer.
	PeerCounts(mac [6]byte) (c FastPathCounts, ok bool)
	// Hold makes all messages use the queues until Release was called as often as Hold. When it returns, the fast path has
	// stopped.
	Hold()
	Release()
	// Refused returns why the host does not let the fast path carry anything at present, or nil.
	Refused() error
	// Posted reports that queue i of the netdev is empty, and that every frame read from it was posted to queue i of the QP or
	// dropped. The reader of that queue calls it each time it finds the queue empty.
	Posted(i int)
	// Counters returns what was carried, and what was not, by reason.
	Counters() []Counter
	// Close ends it, as does closing the QP. Idempotent.
	Close() error
}

// FastPathCounts are the frames carried to a peer and from it, and the bytes of their IP packets.
type FastPathCounts struct {
	TxPackets, TxBytes, RxPackets, RxBytes uint64
}

// FastPathCreator is a [QP] whose device may have a fast path.
type FastPathCreator interface {
	// CreateFastPath begins to carry messages of the QP. A QP has one fast path at a time. Errors: errors.ErrUnsupported, ErrInvalid,
	// ErrBusy, ErrNoMemory if too many QPs have one, ErrClosed, ErrIO, the system's. May block.
	CreateFastPath(spec FastPathSpec) (FastPath, error)
}

// CreateFastPath is CreateFastPath of a QP, if it is a [FastPathCreator], or else errors.ErrUnsupported.
func CreateFastPath(qp QP, spec FastPathSpec) (FastPath, error) {
	if c, ok := qp.(FastPathCreator); ok {
		return c.CreateFastPath(spec)
	}
	return nil, &VerbError{Verb: "create_fast_path", On: qp.Num().String(), Err: errors.ErrUnsupported}
}
