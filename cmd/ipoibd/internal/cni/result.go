package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"ipoibd/link"
)

// anyInterface is the index of layoutOf that stands for all interfaces.
const anyInterface = -1

// layoutOf returns the addresses and routes of an IPAM plugin's result, or the addresses of
// the interface with an index in the result of an earlier ADD. A route without a gateway gets the gateway of
// the first address of its family that has one, as the specification's reference plugins do. layoutOf
// does not trust the result.
func layoutOf(r *current.Result, index int) (l link.Assignment, err error) {
	gateways := map[bool]netip.Addr{} // by Is4
	for i, c := range r.IPs {
		if c == nil {
			return link.Assignment{}, fmt.Errorf("ips[%d]: null", i)
		}
		if index != anyInterface && (c.Interface == nil || *c.Interface != index) {
			continue
		}
		p, err := prefix(c.Address)
		if err != nil {
			return link.Assignment{}, fmt.Errorf("ips[%d]: %w", i, err)
		}
		l.Addrs = append(l.Addrs, p)
		if gw, ok := netip.AddrFromSlice(c.Gateway); ok && !gateways[p.Addr().Is4()].IsValid() {
			gateways[p.Addr().Is4()] = gw.Unmap()
		}
	}
	for i, given := range r.Routes {
		if given == nil {
			return link.Assignment{}, fmt.Errorf("routes[%d]: null", i)
		}
		if given.MTU != 0 || given.AdvMSS != 0 || given.Priority != 0 || given.Table != nil || given.Scope != nil {
			return link.Assignment{}, types.NewError(types.ErrUnsupportedField,
				fmt.Sprintf("routes[%d]: only dst and gw are supported", i), given.String())
		}
		to, err := prefix(given.Dst)
		if err != nil {
			return link.Assignment{}, fmt.Errorf("routes[%d]: %w", i, err)
		}
		to = to.Masked()
		via := gateways[to.Addr().Is4()]
		if gw, ok := netip.AddrFromSlice(given.GW); ok {
			via = gw.Unmap()
		}
		if via.IsUnspecified() {
			via = netip.Addr{}
		}
		if r := (link.Route{To: to, Via: via}); !slices.Contains(l.Routes, r) {
			l.Routes = append(l.Routes, r)
		}
	}
	return l, nil
}

// prefix converts an address with its mask, which may be missing or have holes.
func prefix(n net.IPNet) (netip.Prefix, error) {
	ip, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	ip = ip.Unmap()
	if !ok || bits != ip.BitLen() {
		return netip.Prefix{}, fmt.Errorf("%v is not an address with a prefix length", n)
	}
	return netip.PrefixFrom(ip, ones), nil
}

// resultOf adds the interface to the result of an IPAM plugin.
func resultOf(given *current.Result, a attachment, netns string, seen *device) *current.Result {
	r := *given
	r.CNIVersion = current.ImplementedSpecVersion
	r.Interfaces = []*current.Interface{{Name: a.ifName, Mac: seen.mac, Mtu: seen.mtu, Sandbox: netns}}
	r.IPs = nil
	for _, c := range given.IPs {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: current.Int(0), Address: c.Address, Gateway: c.Gateway})
	}
	return &r
}

// expect returns what the result of an earlier ADD says of an attachment.
func expect(r *current.Result, a attachment, netns string) (mac string, l link.Assignment, err error) {
	i := slices.IndexFunc(r.Interfaces, func(f *current.Interface) bool {
		return f != nil && f.Name == a.ifName && f.Sandbox == netns
	})
	if i < 0 {
		return "", link.Assignment{}, fmt.Errorf("the previous result has no interface %s in %s", a.ifName, netns)
	}
	if l, err = layoutOf(r, i); err != nil {
		return "", link.Assignment{}, fmt.Errorf("the previous result: %w", err)
	}
	return r.Interfaces[i].Mac, l, nil
}
