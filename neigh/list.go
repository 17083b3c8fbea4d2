package neigh

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// PeerInfo describes a peer to an operator.
type PeerInfo struct {
	MAC    ipoib.MAC    `json:"mac"`
	GID    hca.GID      `json:"gid"`
	QPN    hca.QPN      `json:"qpn"`
	IPs    []netip.Addr `json:"ips"`  // bound to it
	Used   bool         `json:"used"` // the host has sent data to it
	Handle string       `json:"-"`    // none, asked, ready, waiting or refused
	// Sent and Heard are when data was last sent to it, and when data, ARP or ND was last received
	// from it, to within markInterval; zero: never.
	Sent  time.Time `json:"sent,omitzero"`
	Heard time.Time `json:"heard,omitzero"`
	// SentBytes and HeardBytes are of the IP packets of this data.
	SentBytes  uint64 `json:"sent_bytes,omitzero"`
	HeardBytes uint64 `json:"heard_bytes,omitzero"`
}

// Peers returns the peers in no particular order. It allocates.
func (t *Table) Peers() []PeerInfo {
	out := make([]PeerInfo, 0, len(t.peers.live.byMAC))
	ips := make([]netip.Addr, 0, len(t.peers.live.byIP)) // of all peers
	for p := range t.peers.live.all() {
		n := len(ips)
		ips = append(ips, p.ips...)
		out = append(out, PeerInfo{
			MAC: p.mac, GID: p.gid, QPN: p.qpn, IPs: ips[n:len(ips):len(ips)],
			Used: p.used, Handle: p.handle.state.String(), Sent: p.sentAt, Heard: p.heardAt,
			SentBytes: p.sent.bytes.Load(), HeardBytes: p.heard.bytes.Load(),
		})
	}
	return out
}

// StationInfo describes a station on the host's side to an operator.
type StationInfo struct {
	MAC     ipoib.MAC    `json:"mac"`
	IPs     []netip.Addr `json:"ips"`             // those that it has claimed, and those of the host at home
	Seen    time.Time    `json:"seen,omitzero"`   // when it last sent, to within sweepInterval; zero: never
	Default bool         `json:"-"`               // it gets the frames for addresses that no station has
	Router  bool         `json:"router,omitzero"` // it has said that it is an IPv6 router
	Groups  []netip.Addr `json:"-"`               // IP multicast groups that it has joined, in no order
}

// Stations returns the stations, ib0's own first. It allocates.
func (t *Table) Stations() (out []StationInfo) {
	h := &t.host.stations
	for _, s := range h.list {
		info := StationInfo{
			MAC: s.mac, IPs: slices.Clone(s.ips), Seen: s.seen, Default: s.mac == h.home.mac,
			Router: s.router != notRouter,
		}
		if info.Default {
			info.IPs = append(info.IPs, h.home.ips...)
		}
		for _, g := range s.groups {
			info.Groups = append(info.Groups, g.group)
		}
		out = append(out, info)
	}
	return out
}

// restore adds the stations of a former table. Netlink reports ib0's own MAC and the host's addresses again.
func (s *stations) restore(list []StationInfo, now time.Time) {
	for _, info := range list {
		if info.MAC.IsZero() || info.MAC.IsMulticast() || !s.admit(info.MAC, now) {
			continue
		}
		for _, ip := range info.IPs {
			if isUnicast(ip) && s.byIP[ip] == nil {
				s.claim(info.MAC, ip)
			}
		}
		if info.Router {
			s.setRouter(s.byMAC[info.MAC], saysSo) // it says again whether it advertises itself
		}
	}
}

// restore adds the peers of a former table, as far as the bounds allow. The rest is heard again.
func (s *peers) restore(list []PeerInfo) {
	for _, info := range list {
		e := endpoint{info.GID, info.QPN}
		p := &peer{endpoint: e, mac: info.MAC, used: info.Used, seen: s.step.now, sentAt: info.Sent, heardAt: info.Heard}
		switch {
		case !e.valid() || info.MAC.IsZero() || info.MAC.IsMulticast():
			continue
		case s.live.byEndpoint[e] != nil || s.macTaken(info.MAC):
			continue
		case s.live.class(p).Len() >= s.conf.most(p.used) || len(s.live.byGID[e.gid]) >= maxPeersPerGID:
			continue
		}
		p.sent.bytes.Store(info.SentBytes)
		p.heard.bytes.Store(info.HeardBytes)
		s.live.add(p)
		for _, ip := range info.IPs {
			if isUnicast(ip) && s.live.byIP[ip] == nil {
				s.live.bind(ip, p)
			}
		}
		if s.view.show(p); p.used {
			s.ready = append(s.ready, p)
		}
	}
}

// askRestored requests the handles of the restored peers that the host has sent data to, so that the
// frames that already wait need not pass the slow path.
func (s *peers) askRestored() {
	for _, p := range s.ready {
		if s.live.byEndpoint[p.endpoint] == p && p.handle.state == handleNone {
			s.handles.becomeAsked(p)
		}
	}
	s.ready = nil
}
