package neigh

import (
	"encoding/binary"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Snapshot is what the data path looks up. It is immutable, safe for any number
// of goroutines, and its look-ups do not allocate. All that they write are the
// marks of use, each set at most once per look, so that their cache lines stay shared
// between the processors. The zero value knows no peers.
type Snapshot struct {
	epoch     uint64
	up        bool
	self      endpoint
	broadcast hca.UDDest
	own       station
	learnt    station
	hostMAC   ipoib.MAC
	routes    map[macKey]route    // peers with a handle
	sources   map[endpoint]source // them, and peers whose MAC is not the plain one
}

// route is a peer to send to.
type route struct {
	dest hca.UDDest
	sent *atomic.Bool
}

// source is a peer to receive from.
type source struct {
	mac   ipoib.MAC
	heard *atomic.Bool
}

// macKey is a MAC as a number: the runtime looks up integers three times as fast
// as arrays.
type macKey uint64

func keyOf(m ipoib.MAC) macKey {
	return macKey(binary.BigEndian.Uint16(m[:]))<<32 | macKey(binary.BigEndian.Uint32(m[2:]))
}

// snapshot returns the table as it is now. It costs O(peers).
func (t *Table) snapshot() *Snapshot {
	s := &Snapshot{
		epoch: t.pub.epoch, up: t.link.up, self: t.link.self, broadcast: t.link.broadcast,
		own: t.mac.own, learnt: t.mac.learnt, hostMAC: t.mac.dest(),
		routes:  make(map[macKey]route, t.handles.ready),
		sources: make(map[endpoint]source, t.handles.ready),
	}
	for _, p := range t.peers.byEndpoint {
		ready := p.handle.state == handleReady
		if ready {
			s.routes[keyOf(p.mac)] = route{t.dest(p), &p.sent}
		}
		if ready || !p.plain {
			s.sources[p.endpoint] = source{p.mac, &p.heard}
		}
	}
	return s
}

// Epoch numbers the snapshots of a table, from 1; 0 is the zero value's.
func (s *Snapshot) Epoch() uint64 { return s.epoch }

// Unicast returns where to send frames for dst; false where the slow path must
// look after it. It marks the peer as used.
func (s *Snapshot) Unicast(dst ipoib.MAC) (hca.UDDest, bool) {
	r, ok := s.routes[keyOf(dst)]
	if ok {
		mark(r.sent)
	}
	return r.dest, ok
}

// Group returns where to send messages for a group; false while there is no QP.
// Without a subnet manager every group is the broadcast group.
func (s *Snapshot) Group(hca.GID) (hca.UDDest, bool) { return s.broadcast, s.up }

// PeerMAC returns the source MAC of frames towards the host: that of the peer. It marks
// the peer as heard. For a sender that is no peer yet, it is the plain MAC of the GID, or
// the first rehash that is not the host's. The sender may get another MAC when it is
// heard, if another interface of its GID has that one or had it. This does no harm: the
// host sends to the MACs that ARP and ND name.
func (s *Snapshot) PeerMAC(gid hca.GID, qpn hca.QPN) ipoib.MAC {
	if from, ok := s.sources[endpoint{gid, qpn}]; ok {
		mark(from.heard)
		return from.mac
	}
	mac := plainMAC(gid)
	for n := uint32(1); s.own.is(mac) || s.learnt.is(mac); n++ {
		mac = rehashedMAC(gid, qpn, n)
	}
	return mac
}

// HostMAC returns the destination MAC of unicast frames towards the host.
func (s *Snapshot) HostMAC() ipoib.MAC { return s.hostMAC }

// FromHost reports whether src is known to be the host's; false: the slow path
// must see the frame. It marks src as active.
func (s *Snapshot) FromHost(src ipoib.MAC) bool {
	switch {
	case s.own.is(src):
		mark(s.own.sent)
	case s.learnt.is(src):
		mark(s.learnt.sent)
	default:
		return false
	}
	return true
}

// Self reports whether a sender is this interface itself.
func (s *Snapshot) Self(gid hca.GID, qpn hca.QPN) bool {
	return s.up && s.self == endpoint{gid, qpn}
}

// mark sets a mark, and does not write where it is set already.
func mark(m *atomic.Bool) {
	if !m.Load() {
		m.Store(true)
	}
}
