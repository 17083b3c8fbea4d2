package neigh

import (
	"encoding/binary"
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

// local reports whether a station behind ib0 can have ip: it is in one of the networks, or there is none of that
// family.
func (n networks) local(ip netip.Addr) bool {
	if ip.IsLinkLocalUnicast() {
		return true
	}
	family := false
	for _, p := range n {
		if p.Contains(ip) {
			return true
		}
		family = family || p.Addr().Is4() == ip.Is4()
	}
	return !family
}

// broadcasts returns the directed broadcast addresses of the IPv4 networks (RFC 919) that have one (RFC 3021).
func (n networks) broadcasts() (ips []netip.Addr) {
	for _, p := range n {
		if p.Addr().Is4() && p.Bits() <= 30 {
			ip := p.Addr().As4()
			binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(ip[:])|(1<<(32-p.Bits())-1))
			ips = append(ips, netip.AddrFrom4(ip))
		}
	}
	return ips
}
