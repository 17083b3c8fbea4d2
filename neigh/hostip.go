package neigh

import (
	"net/netip"
	"slices"
)

// hostIPs are the host's addresses: those reported by netlink, and those learnt
// from its ARP and ND, which include the addresses of a machine behind a
// bridge.
type hostIPs struct {
	given  []netip.Addr
	learnt []netip.Addr // oldest first
	router bool         // the host is an IPv6 router, as far as is known
}

// set replaces the addresses from netlink and reports whether any is new.
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

// learn notes an address that the host has claimed.
func (h *hostIPs) learn(ip netip.Addr) {
	if h.has(ip) {
		return
	}
	if len(h.learnt) >= maxLearntIPs {
		h.learnt = slices.Delete(h.learnt, 0, 1)
	}
	h.learnt = append(h.learnt, ip)
}

// unlearn forgets a learnt address.
func (h *hostIPs) unlearn(ip netip.Addr) {
	h.learnt = slices.DeleteFunc(h.learnt, func(l netip.Addr) bool { return l == ip })
}

// unlearnAll forgets all learnt addresses and the router flag.
func (h *hostIPs) unlearnAll() { h.learnt, h.router = nil, false }

// all returns all addresses.
func (h *hostIPs) all() []netip.Addr { return slices.Concat(h.given, h.learnt) }

// source returns the source address of a request for target: wish, if it is an
// address of the host (the source of a routed packet would mislead the receiver);
// otherwise another address of that family; otherwise the unspecified one, which
// makes the request a probe.
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
