package iface

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// sources returns the IP addresses that the host may use: the configured ones and its link-local IPv6
// addresses; nil: any. The one that the kernel derives from the MAC is included at once, because the kernel may
// send from it before netlink reports it.
func (f *Iface) sources() (list []netip.Addr) {
	if !f.cfg.SourceCheck {
		return nil
	}
	for _, p := range f.host.assignment.want.Addrs {
		list = append(list, p.Addr())
	}
	list = append(list, ipoib.MAC(f.host.now.MAC).LinkLocal())
	for _, p := range f.host.now.Addrs {
		if ip := p.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
			list = append(list, ip)
		}
	}
	return list
}

// checkSources makes the lanes drop the host's frames from other addresses.
func (f *Iface) checkSources() {
	list := f.sources()
	for _, l := range f.lanes {
		l.tx.SetSources(list)
	}
}

// ownAddrs returns the host's addresses among those of ib0 and its master that it may use: the table announces
// them.
func (f *Iface) ownAddrs() (own []netip.Addr) {
	list := f.sources()
	for ip := range f.host.now.SelfAddrs() {
		if list == nil || slices.Contains(list, ip) {
			own = append(own, ip)
		}
	}
	return own
}
