package memfabric

import "ipoibd/hca/soft/transport"

// Capture is one datagram as a hook sees it: once for each receiver that it
// crosses to, or once with To empty where it did not leave.
type Capture struct {
	From, To string           // port names
	Packet   transport.Packet // Data is a copy; Vec is nil
	Drop     Drop             // why it was not delivered, empty when it was queued
}

// Capture calls hook for each datagram from now on, nil ends it. The hook runs
// inside of Send with the fabric locked: it may keep what it is given, and must
// not call the fabric or a port.
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
	c.Packet.Data, c.Packet.Vec = gather(nil, pkt), nil
	f.capture(c)
}

// gather appends the bytes of a packet, that of its Vec or else its Data.
func gather(b []byte, pkt *transport.Packet) []byte {
	if pkt.Vec == nil {
		return append(b, pkt.Data...)
	}
	for _, v := range pkt.Vec {
		b = append(b, v...)
	}
	return b
}

// size is the number of bytes of a packet to send.
func size(pkt *transport.Packet) (n int) {
	for _, v := range pkt.Vec {
		n += len(v)
	}
	return n
}
