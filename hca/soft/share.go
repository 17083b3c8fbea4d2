package soft

import (
	"slices"
)

// fromSharer reports whether a datagram from one of the port's own addresses comes from another
// device that shares them, judging by its source port. It counts all others. Messages of this
// port to itself never reach the wire, so such a datagram is either forged, or this device's
// own multicast: the kernel loops that back while devices share the port.
func (l *lane) fromSharer(port uint16) bool {
	d := l.dev
	reason := dropOwnSource
	if d.cfg.Sharers != nil && slices.Contains(d.cfg.Sharers(), port) {
		if !slices.ContainsFunc(d.lanes, func(own *lane) bool { return own.wire.SrcPort() == port }) {
			return true
		}
		reason = rxOwnMulticast
	}
	l.counts.add(reason, 1)
	return false
}
