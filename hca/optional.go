package hca

// What follows are optional capabilities: a backend has one by implementing its
// interface, and callers ask by a type assertion. A wrapper of a backend passes
// on those that the backend has.

// WireReporter is a [Device] that sees when the wire below takes no packets.
type WireReporter interface {
	// WireBlocked returns a count that grows whenever a send finds the wire
	// full, whether it then waits or is dropped. Where the count differs from
	// the previous reading, delays since then say nothing about the device.
	// It does not block, and any goroutine may call it.
	WireBlocked() uint64
}

// Stray describes the latest datagrams that named a QPN no QP of the device
// has. Their sender holds an address from before a restart, or forges one.
type Stray struct {
	Count  uint64 // of such datagrams since the device was opened; the rest is of the latest
	PKey   PKey
	SGID   GID
	SrcQPN QPN
}

// StrayReporter is a [Device] that sees such datagrams.
type StrayReporter interface {
	// Strays does not block, and any goroutine may call it.
	Strays() Stray
}
