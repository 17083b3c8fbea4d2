package neigh

import (
	"net/netip"
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
	out := make([]PeerInfo, 0, len(t.peers.byMAC))
	ips := make([]netip.Addr, 0, len(t.peers.byIP)) // of all peers
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			n := len(ips)
			ips = append(ips, p.ips...)
			out = append(out, PeerInfo{
				MAC: p.mac, GID: p.gid, QPN: p.qpn, IPs: ips[n:len(ips):len(ips)],
				Used: p.used, Handle: p.handle.state.String(), Sent: p.sentAt, Heard: p.heardAt,
				SentBytes: p.sent.bytes.Load(), HeardBytes: p.heard.bytes.Load(),
			})
		})
	}
	return out
}
