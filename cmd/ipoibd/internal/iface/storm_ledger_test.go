package iface

import (
	"encoding/binary"
	"sync"
	"testing"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/ud/ipoib"
)

// The mark of a frame follows the IPv4 header of a packet with an experimental protocol. On the
// wire, BTH, DETH and the IPoIB header precede that header.
const (
	markAt       = 20
	markProtocol = 253 // RFC 3692: for experiments
	markOnTAP    = 14 + markAt
	packetOnWire = 12 + 8 + ipoib.HeaderLen
	markOnWire   = packetOnWire + markAt
	markLen      = 8
)

// fate is what became of a marked frame.
type fate struct {
	given   int // the kernel accepted it
	crossed int // it was queued at the receiver's netdev
	lost    int // it left the sender and was not queued there, or was purged
	arrived int // the receiver's host got it
}

// ledger follows each marked frame from end to end, and counts what the fabric
// carries.
type ledger struct {
	mu     sync.Mutex
	fates  [2][]fate         // by sender
	left   map[string]uint64 // datagrams that tried to leave a port
	queued map[string]uint64 // at a port
	purged map[string]uint64 // of those, by its netdev
}

// next returns the mark of a sender's next frame.
func (l *ledger) next(from int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fates[from] = append(l.fates[from], fate{})
	return uint64(from)<<56 | uint64(len(l.fates[from])-1)
}

// give records that the kernel accepted a sender's last frame.
func (l *ledger) give(from int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fates[from][len(l.fates[from])-1].given++
}

// find finds a frame by the bytes of its mark. l.mu is held.
func (l *ledger) find(b []byte) (from int, f *fate) {
	mark := binary.BigEndian.Uint64(b)
	from = int(mark >> 56)
	return from, &l.fates[from][mark&(1<<56-1)]
}

// capture is the fabric's hook.
func (l *ledger) capture(c memfabric.Capture) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countDatagram(&c)
	b := c.Packet.Data
	if len(b) < markOnWire+markLen || b[packetOnWire] != 0x45 || b[packetOnWire+9] != markProtocol {
		return
	}
	if _, f := l.find(b[markOnWire:]); c.Drop == "" {
		f.crossed++
	} else {
		f.lost++
	}
}

// countDatagram counts a datagram. One that a netdev purges was counted before, when it left.
func (l *ledger) countDatagram(c *memfabric.Capture) {
	if l.left == nil {
		l.left, l.queued, l.purged = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	}
	switch {
	case c.From == "":
		l.purged[c.To]++
	case c.Drop == "":
		l.queued[c.To]++
		fallthrough
	default:
		l.left[c.From]++
	}
}

// arrive records a frame that arrived at host number at.
func (l *ledger) arrive(t *testing.T, at int, frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, f := l.find(frame[markOnTAP:])
	if from == at {
		t.Errorf("host %d got its own frame back", at)
	}
	f.arrived++
}

// sums are the totals of one direction.
type sums struct{ given, left, crossed, arrived uint64 }

// total fails for each frame that was duplicated or never sent.
func (l *ledger) total(t *testing.T, from int) (s sums) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.fates[from] {
		left := min(1, f.crossed+f.lost)
		if f.arrived > f.crossed || f.crossed > 1 || left > f.given {
			t.Errorf("frame %d of host %d: %+v", i, from, f)
		}
		s.given += uint64(f.given)
		s.left += uint64(left)
		s.crossed += uint64(f.crossed)
		s.arrived += uint64(f.arrived)
	}
	return s
}
