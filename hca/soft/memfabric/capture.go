package memfabric

import (
	"bytes"

	"ipoibd/hca/soft/transport"
)

// Capture is one datagram, as passed to a hook: once for each receiver, or once with an
// empty To if the port did not send it.
type Capture struct {
	From, To string           // names of netdevs
	Packet   transport.Packet // Data is a copy
	Drop     Drop             // why it was not delivered; empty if it was queued
}

// Capture calls hook for each datagram from now on; nil ends that. The hook runs inside
// Send with the fabric locked: it may keep its argument, but must not call the fabric or
// a port.
func (f *Fabric) Capture(hook func(Capture)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capture = hook
}

func (f *Fabric) show(from, to string, pkt *transport.Packet, why Drop) {
	if f.capture == nil {
		return
	}
	c := Capture{From: from, To: to, Packet: *pkt, Drop: why}
	c.Packet.Data = bytes.Clone(pkt.Data)
	f.capture(c)
}
