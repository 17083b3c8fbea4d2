package neigh

import (
	"net/netip"
	"slices"
)

// networks are the IP networks of the host, without those of link-local addresses. They do not change: snapshots share
// them.
type networks []netip.Prefix

// networksOf returns the addresses and networks of what netlink reports, each once.
func networksOf(addrs []netip.Prefix) (ips []netip.Addr, links networks) {
	for _, p := range addrs {
		ip := p.Addr().Unmap().WithZone("")
		if len(ips) == maxHostAddrs || !isUnicast(ip) {
			continue
		}
		if !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
		if link := netip.PrefixFrom(ip, p.Bits()).Masked(); !ip.IsLinkLocalUnicast() && !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return ips, links
}

// find reports whether a station behind ib0 can have ip: it is in one of the networks, or no network is of that family.
// all is true if ip is the directed broadcast address of a network (RFC 919), which those of 31 bits lack (RFC 3021).
func (n networks) find(ip netip.Addr) (local, all bool) {
	if ip.IsLinkLocalUnicast() {
		return true, false
	}
	family := false
	for _, p := range n {
		if p.Contains(ip) {
			local = true
			all = all || ip.Is4() && p.Bits() <= 30 && !p.Contains(ip.Next())
		}
		family = family || p.Addr().Is4() == ip.Is4()
	}
	return local || !family, all
}
