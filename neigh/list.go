package neigh

import (
	"bytes"
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// PeerInfo describes a peer to an operator.
type PeerInfo struct {
	MAC    ipoib.MAC
	GID    hca.GID
	QPN    hca.QPN
	IPs    []netip.Addr // bound to it
	Used   bool         // the host has sent data to it
	Handle string       // none, asked, ready, waiting or refused
}

// Peers lists the peers in the order of their MACs. It allocates.
func (t *Table) Peers() []PeerInfo {
	out := make([]PeerInfo, 0, len(t.peers.byMAC))
	for _, p := range t.peers.byMAC {
		out = append(out, PeerInfo{
			MAC: p.mac, GID: p.gid, QPN: p.qpn, IPs: slices.Clone(p.ips),
			Used: p.used, Handle: p.handle.state.String(),
		})
	}
	slices.SortFunc(out, func(a, b PeerInfo) int { return bytes.Compare(a.MAC[:], b.MAC[:]) })
	return out
}
