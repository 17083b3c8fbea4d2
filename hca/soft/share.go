package soft

import (
	"slices"

	"ipoibd/hca/softqp"
)

// fromSharer reports whether another device that shares the port's addresses has sent a
// datagram from one of them, by its source port. It counts the others. Messages of this port
// to itself never reach the wire, so a datagram from the wire with its address is forged, but
// the kernel loops back the multicast that devices on one host hear of each other.
func (d *Device) fromSharer(env *softqp.Env, port uint16) bool {
	reason := dropOwnSource
	if d.cfg.Sharers != nil && slices.Contains(d.cfg.Sharers(), port) {
		if port != env.SrcPort {
			return true
		}
		reason = rxOwnMulticast
	}
	d.counts.add(reason, 1)
	return false
}
