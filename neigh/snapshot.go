package neigh

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Snapshot is the data path's lookup table. It is immutable and safe for concurrent
// use, and its lookups do not allocate. Lookups write nothing but marks of use, and
// each mark only if it is clear, so that cache lines stay shared between processors.
// The zero value contains no peers.
type Snapshot struct {
	epoch     uint64
	up        bool
	alone     bool
	self      hca.UDSource
	broadcast hca.UDDest
	groups    map[hca.GID]hca.UDDest
	own       ipoib.MAC
	ownSent   *atomic.Bool                  // mark: own has sent
	stations  *shards[macKey, *atomic.Bool] // marks of those behind ib0; nil: none
	home      ipoib.MAC                     // has the host's addresses
	given     []netip.Addr                  // the first maxCompared of these
	links     networks                      // of home
	places    *shards[ipKey, ipoib.MAC]     // destinations by address, zero: the fallback; nil: none
	fallback6 ipoib.MAC                     // for IPv6 addresses that are not on the link; for others it is home
	routes    *shards[macKey, route]        // peers with a handle; nil: none
	// sources are, by key, the peers with a handle and those whose MAC is not the plain one; on InfiniBand those whose
	// LID is known. nil: none
	sources *shards[hca.UDSource, source]
}

// route is a peer as a destination.
type route struct {
	dest hca.UDDest
	sent *traffic
}

// source is a peer as a sender.
type source struct {
	mac   ipoib.MAC
	used  bool // the host has sent data to it
	heard *traffic
}

// macKey is a MAC as an integer: map lookups by integer are three times as fast
// as by array.
type macKey uint64

func keyOf(m ipoib.MAC) macKey {
	return macKey(binary.BigEndian.Uint16(m[:]))<<32 | macKey(binary.BigEndian.Uint32(m[2:]))
}

func (k macKey) mac() (m ipoib.MAC) {
	binary.BigEndian.PutUint16(m[:], uint16(k>>32))
	binary.BigEndian.PutUint32(m[2:], uint32(k))
	return m
}

// Epoch returns the number of the snapshot, counted from 1; the zero value has
// number 0.
func (s *Snapshot) Epoch() uint64 { return s.epoch }

// Alone reports whether the host is the only station: ib0 is no bridge port, and no station behind it is known.
func (s *Snapshot) Alone() bool { return s.alone }

// Unicast returns the destination of frames for dst and where to count their bytes, or false if the slow path
// must handle them. It marks that data was sent to the peer.
func (s *Snapshot) Unicast(dst ipoib.MAC) (to hca.UDDest, bytes *atomic.Uint64, ok bool) {
	if s.routes == nil {
		return to, nil, false
	}
	key := keyOf(dst)
	r, ok := s.routes.maps[key.shardOf()][key]
	if !ok {
		return to, nil, false
	}
	mark(&r.sent.mark)
	return r.dest, &r.sent.bytes, true
}

// Group returns the destination of messages to a group, or false while there is no QP.
// For a group to which the QP is not attached, it returns the broadcast group.
func (s *Snapshot) Group(mgid hca.GID) (hca.UDDest, bool) {
	if to, ok := s.groups[mgid]; ok {
		return to, s.up
	}
	return s.broadcast, s.up
}

// PeerMAC returns the source MAC of frames for the host, which is the MAC of the peer, and where to count their
// bytes, and marks the peer as heard. For a sender that is not in the snapshot, it returns the
// plain MAC of the GID, or the first rehash that is not the host's. The sender may get a
// different MAC once it sends ARP or ND, if another interface of its GID has or had that
// one. On InfiniBand it is the MAC of a GID made from LID and QPN, and always another one. This is harmless, because the host sends only to MACs from ARP and ND.
func (s *Snapshot) PeerMAC(from hca.UDSource) (mac ipoib.MAC, bytes *atomic.Uint64) {
	if peer, ok := s.source(&from); ok {
		mark(&peer.heard.mark)
		return peer.mac, &peer.heard.bytes
	}
	return s.strangerMAC(from), nil
}

// strangerMAC returns the MAC of a sender that is not in the snapshot.
func (s *Snapshot) strangerMAC(from hca.UDSource) ipoib.MAC {
	gid := from.GID
	if from.LID != 0 {
		gid = hca.GID{10: byte(from.LID >> 8), 11: byte(from.LID), 13: byte(from.QPN >> 16), 14: byte(from.QPN >> 8), 15: byte(from.QPN)}
	}
	mac := plainMAC(gid)
	for n := uint32(1); n <= maxRehashes && s.isStation(mac); n++ { // stations can be invented that have them all
		mac = rehashedMAC(gid, from.QPN, n)
	}
	return mac
}

// InUse reports whether a sender is a used peer. It marks nothing.
func (s *Snapshot) InUse(from hca.UDSource) bool {
	peer, ok := s.source(&from)
	return ok && peer.used
}

// source returns the peer that is a sender. It makes from the key, in place, because copies are a good part of the
// costs of a look-up.
func (s *Snapshot) source(from *hca.UDSource) (source, bool) {
	if from.LID != 0 {
		*from = from.Key()
	}
	if s.sources == nil {
		return source{}, false
	}
	peer, ok := s.sources.maps[shardOf(from)][*from]
	return peer, ok
}

// StationMAC returns the destination MAC of unicast frames for ip, or false if the slow path must find the station.
func (s *Snapshot) StationMAC(ip netip.Addr) (ipoib.MAC, bool) {
	for i := range s.given {
		if s.given[i] == ip {
			return s.home, true
		}
	}
	known := false
	if s.places != nil {
		key := keyOfIP(ip)
		var m ipoib.MAC
		if m, known = s.places.maps[key.shardOf()][key]; !m.IsZero() {
			return m, true
		}
	}
	local, all := s.links.find(ip)
	switch {
	case all:
		return ipoib.Broadcast, true
	case local && !known:
		return ipoib.MAC{}, false
	case ip.Is6():
		return s.fallback6, true
	}
	return s.home, true
}

// maxCompared is up to how many addresses of the host a comparison with each is faster than a lookup.
const maxCompared = 4

// FromHost reports whether src is a known MAC of the host; if not, the slow
// path must handle the frame. It marks src as active.
func (s *Snapshot) FromHost(src ipoib.MAC) bool {
	if src == s.own {
		if s.ownSent == nil {
			return false
		}
		mark(s.ownSent)
		return true
	}
	m := s.station(src)
	if m == nil {
		return false
	}
	mark(m)
	return true
}

// IsHost reports whether src is the MAC of ib0 or its master.
func (s *Snapshot) IsHost(src ipoib.MAC) bool { return src == s.own || src == s.home }

// station returns the mark of a station behind ib0, or nil if there is no such station.
func (s *Snapshot) station(m ipoib.MAC) *atomic.Bool {
	if s.stations == nil {
		return nil
	}
	key := keyOf(m)
	return s.stations.maps[key.shardOf()][key]
}

func (s *Snapshot) isStation(m ipoib.MAC) bool { return m == s.own || s.station(m) != nil }

// Self reports whether a sender is this interface itself.
func (s *Snapshot) Self(from hca.UDSource) bool {
	if from.LID != 0 {
		from = from.Key()
	}
	return s.up && s.self == from
}

// mark sets a mark, without writing if it is already set.
func mark(m *atomic.Bool) {
	if !m.Load() {
		m.Store(true)
	}
}
