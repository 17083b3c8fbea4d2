package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// assigned checks a list of addresses or routes. parse returns what only one entry may have: an
// address, or a destination.
func assigned[K comparable](m place, list []string, parse func(string) (K, error)) {
	m.require(len(list) <= maxAssigned, "%d entries; at most %d are allowed", len(list), maxAssigned)
	first := map[K]string{}
	for i, s := range list {
		key, err := parse(s)
		earlier, again := first[key]
		switch {
		case err != nil:
			m.at(i).add("%v", err)
		case again && earlier == s:
			m.at(i).add("%s is listed twice; once is enough", s)
		case again:
			m.at(i).add("%s is listed already, as %s; keep one of them", s, earlier)
		default:
			first[key] = s
		}
	}
}

// ParseAddress reads an address of the host with the length of its network's prefix, such as
// 10.9.0.1/24.
func ParseAddress(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("%s has no prefix length; write %s/%d if it is alone, "+
			"or the length of its network's prefix", s, a, a.BitLen())
	}
	p, err := netip.ParsePrefix(s)
	switch a := p.Addr(); {
	case err != nil || a.Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is not an address with a prefix length, "+
			"such as 10.9.0.1/24 or fd09::1/64", s)
	case a.IsMulticast(), a.IsUnspecified(), a.IsLoopback():
		return netip.Prefix{}, fmt.Errorf("%s cannot be the address of an interface: "+
			"it is multicast, unspecified or loopback", s)
	case a.Is4() && p.Bits() < 31 && (p.Masked().Addr() == a || last(p) == a):
		return netip.Prefix{}, fmt.Errorf("%s is the first or the last address of its network, "+
			"which no host may have", s)
	}
	return p, nil
}

// last returns the broadcast address of an IPv4 network.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// ParseRoute reads a route through the interface: "10.0.0.0/8 via 10.9.0.254", or without "via" if
// the destinations are on the link. "default" stands for all destinations of the gateway's family.
func ParseRoute(s string) (to netip.Prefix, via netip.Addr, err error) {
	dest, gateway, gated := strings.Cut(s, " via ")
	dest, gateway = strings.TrimSpace(dest), strings.TrimSpace(gateway)
	if gated {
		via, err = netip.ParseAddr(gateway)
		if err != nil || via.Zone() != "" || via.Is4In6() || via.IsMulticast() || via.IsUnspecified() {
			return to, via, fmt.Errorf("%q: %q is not the address of a gateway", s, gateway)
		}
	}
	switch {
	case dest == "default" && !gated:
		return to, via, errors.New(`"default" needs a gateway, as in "default via 10.9.0.254"; ` +
			"without one, write 0.0.0.0/0 or ::/0")
	case dest == "default":
		to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if via.Is4() {
			to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		return to, via, nil
	}
	switch to, err = netip.ParsePrefix(dest); {
	case err != nil || to.Addr().Is4In6():
		return to, via, fmt.Errorf(`%q is not a route, such as "10.0.0.0/8 via 10.9.0.254" or "10.0.0.0/8"`, s)
	case to != to.Masked():
		return to, via, fmt.Errorf("%q: %s has host bits; write %s", s, dest, to.Masked())
	case to.Addr().IsMulticast():
		return to, via, fmt.Errorf("%q: multicast needs no route", s)
	case gated && to.Addr().Is4() != via.Is4():
		return to, via, fmt.Errorf("%q: the destination and the gateway differ in their IP version", s)
	}
	return to, via, nil
}
