package iface

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// sources returns the IP addresses that the host may use: the configured ones and the link-local one of its MAC,
// which no other interface has; nil: any. The daemon has the kernel use that one ([link.Assignment]), and restores
// the MAC when someone changes it. Another link-local address could belong to any host or router.
func (h *host) sources() (list []netip.Addr) {
	if !h.assignment.want.LinkLocalOfMAC {
		return nil
	}
	for _, p := range h.assignment.want.Addrs {
		list = append(list, p.Addr())
	}
	return append(list, ipoib.MAC(h.now.MAC).LinkLocal())
}

// checkSources makes the lanes drop the host's frames from other addresses.
func (h *host) checkSources() {
	h.lanes.allowSources(h.sources())
}

// ownAddrs returns the addresses of ib0 and its master that the host may use: the table announces them.
func (h *host) ownAddrs() (own []netip.Addr) {
	list := h.sources()
	for ip := range h.now.SelfAddrs() {
		if list == nil || slices.Contains(list, ip) {
			own = append(own, ip)
		}
	}
	return own
}
