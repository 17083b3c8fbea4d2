package iface

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// sources returns the IP addresses that the host may use: the configured ones and the link-local one of its MAC,
// which no other interface has; nil: any. The daemon has the kernel use that one ([link.Assignment]), and restores
// the MAC when someone changes it. Another link-local address could belong to any host or router.
func (f *Iface) sources() (list []netip.Addr) {
	if !f.cfg.SourceCheck {
		return nil
	}
	for _, p := range f.host.assignment.want.Addrs {
		list = append(list, p.Addr())
	}
	return append(list, ipoib.MAC(f.host.now.MAC).LinkLocal())
}

// checkSources makes the lanes drop the host's frames from other addresses.
func (f *Iface) checkSources() {
	f.lanes.allowSources(f.sources())
}

// ownAddrs returns the addresses of ib0 and its master that the host may use: the table announces them.
func (f *Iface) ownAddrs() (own []netip.Addr) {
	list := f.sources()
	for ip := range f.host.now.SelfAddrs() {
		if list == nil || slices.Contains(list, ip) {
			own = append(own, ip)
		}
	}
	return own
}
