package hca

// What follows are optional capabilities: a backend has one by implementing its
// interface. A wrapper of a backend, such as package guard, implements all of them:
// it asks the backend by the function next to the interface, and reports zero where
// the backend reports nothing.

// WireReporter is a [Device] that sees when the wire below takes no packets.
type WireReporter interface {
	// WireBlocked returns a count that grows whenever a send finds the wire
	// full, whether it then waits or is dropped. Where the count differs from
	// the previous reading, delays since then say nothing about the device.
	// It does not block, and any goroutine may call it.
	WireBlocked() uint64
}

// WireBlockedOf returns the count of a device, zero if it is no [WireReporter].
func WireBlockedOf(dev Device) uint64 {
	if r, ok := dev.(WireReporter); ok {
		return r.WireBlocked()
	}
	return 0
}

// Stray is a sender of datagrams that name a QPN no QP of the device has. The sender
// holds an address from before a restart, or forges one.
type Stray struct {
	Number uint64 // of its latest such datagram, counted over all senders from 1; zero: no sender
	PKey   PKey
	QKey   QKey // as received: the sender may not know the right one
	SGID   GID
	SrcQPN QPN
}

// MaxStrays bounds the senders that a device remembers. The interfaces of all its
// partitions share them, and a handful of hosts sends to one that has restarted; more
// at a time are forged.
const MaxStrays = 32

// Strays are the latest senders, all different and in no order. A sender that is not
// among them any more comes back with its next datagram.
type Strays [MaxStrays]Stray

// StrayReporter is a [Device] that sees such datagrams.
type StrayReporter interface {
	// Strays returns the senders since the device was opened; a reader takes those
	// whose Number is above every one in its previous reading. ok is false for a
	// wrapper of a device that never reports any. It does not block, and any
	// goroutine may call it.
	Strays() (s Strays, ok bool)
}

// StraysOf returns the stray senders that a device reports; ok is false if it is no
// [StrayReporter].
func StraysOf(dev Device) (s Strays, ok bool) {
	if r, reports := dev.(StrayReporter); reports {
		return r.Strays()
	}
	return Strays{}, false
}
