package neigh

import (
	"net/netip"
	"slices"
)

// hostIPs are the addresses of the host: given by netlink, and learnt from its
// ARP and ND, which also shows those of a machine behind a bridge.
type hostIPs struct {
	given  []netip.Addr
	learnt []netip.Addr // oldest first
	router bool         // the host is an IPv6 router, as far as is known
}

// set replaces the given addresses and reports whether one is new.
func (h *hostIPs) set(addrs []netip.Addr) (added bool) {
	var given []netip.Addr
	for _, ip := range addrs {
		ip = ip.Unmap().WithZone("")
		if len(given) == maxHostAddrs || !isUnicast(ip) || slices.Contains(given, ip) {
			continue
		}
		given = append(given, ip)
		added = added || !h.has(ip)
	}
	h.given = given
	h.learnt = slices.DeleteFunc(h.learnt, func(ip netip.Addr) bool { return slices.Contains(given, ip) })
	return added
}

func (h *hostIPs) has(ip netip.Addr) bool {
	return slices.Contains(h.given, ip) || slices.Contains(h.learnt, ip)
}

// learn notes an address that the host claims.
func (h *hostIPs) learn(ip netip.Addr) {
	if h.has(ip) {
		return
	}
	if len(h.learnt) >= maxLearntIPs {
		h.learnt = slices.Delete(h.learnt, 0, 1)
	}
	h.learnt = append(h.learnt, ip)
}

// forget forgets an address that was learnt.
func (h *hostIPs) forget(ip netip.Addr) {
	h.learnt = slices.DeleteFunc(h.learnt, func(l netip.Addr) bool { return l == ip })
}

// forgetLearnt forgets all that was learnt.
func (h *hostIPs) forgetLearnt() { h.learnt, h.router = nil, false }

// all calls f for each address.
func (h *hostIPs) all(f func(netip.Addr)) {
	for _, ip := range h.given {
		f(ip)
	}
	for _, ip := range h.learnt {
		f(ip)
	}
}

// source returns an address to ask for target from: wish, if the host has it
// (a routed packet's source would mislead the one asked), else another one of
// that family, else the unspecified one, which makes the question a probe.
func (h *hostIPs) source(target, wish netip.Addr) netip.Addr {
	if wish.Is4() == target.Is4() && h.has(wish) {
		return wish
	}
	same := func(ip netip.Addr) bool { return sameKind(ip, target) }
	for _, known := range [][]netip.Addr{h.given, h.learnt} {
		if i := slices.IndexFunc(known, same); i >= 0 {
			return known[i]
		}
	}
	if target.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
