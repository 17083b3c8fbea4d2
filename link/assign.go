package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// assignedProto marks the addresses and routes that Assign has added, so that a later process
// finds them (IFA_PROTO, linux/if_addr.h; rtm_protocol, linux/rtnetlink.h). The kernel gives it
// no meaning; /etc/iproute2/rt_protos names no such protocol.
const assignedProto = 73

// ifaProto is the attribute IFA_PROTO (linux/if_addr.h). Linux before 5.18 ignores it; addresses
// that are no longer assigned then stay.
const ifaProto = 11

// Assignment is what a configuration gives an interface.
type Assignment struct {
	Addrs  []netip.Prefix // of the host, with the length of its network's prefix
	Routes []Route
	// LinkLocalOfMAC has the kernel derive the link-local IPv6 address from the MAC (RFC 4291, appendix A),
	// whatever the host's default is, from the next time on that the interface is set up.
	LinkLocalOfMAC bool
}

// Route is a route through an interface.
type Route struct {
	To  netip.Prefix // without host bits
	Via netip.Addr   // the gateway; the zero Addr: the destinations are on the link
}

func (r Route) String() string {
	if r.Via.IsValid() {
		return fmt.Sprintf("%v via %v", r.To, r.Via)
	}
	return r.To.String()
}

// Assign gives the interface addresses and routes, and takes back those that an earlier Assign,
// of this process or of another one, has given it and that are no longer assigned. Addresses and
// routes that others have set stay, even if they are assigned too, with one exception: the kernel
// removes the secondary IPv4 addresses of a network together with its primary one, unless the sysctl
// promote_secondaries is set. Routes need an interface that
// is up; while it is down, Assign leaves them alone. An address or a route that fails does not
// keep the others from being set or removed; the error names each. May block.
func (t *TAP) Assign(a Assignment) error {
	var refused error
	err := t.dev.visit(func(r *rtnl, l netlink.Link) error {
		refused = nil
		index, up := l.Attrs().Index, l.Attrs().RawFlags&unix.IFF_UP != 0
		err := r.assignAddrs(index, l.Attrs().MTU, a.Addrs)
		if a.LinkLocalOfMAC {
			err = errors.Join(err, r.deriveLinkLocal(index))
		}
		if up {
			err = errors.Join(err, r.assignRoutes(index, a.Routes))
		}
		if errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			refused = err // a setting forbids it, not a lack of rights, so it is not ErrPermission
			return nil
		}
		return err
	})
	return errors.Join(err, refused)
}

// BringUp sets the interface up. May block.
func (t *TAP) BringUp() error {
	err := t.dev.visit(func(r *rtnl, l netlink.Link) error {
		msg := linkMessage(l.Attrs().Index)
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
		return r.set(unix.RTM_SETLINK, msg)
	})
	if err != nil {
		return fmt.Errorf("set %s up: %w", t.tun.name, err)
	}
	return nil
}

// assignAddrs removes addresses first: the kernel removes the secondary addresses of a network
// together with its primary one. mtu is the MTU of the interface.
func (r *rtnl) assignAddrs(index, mtu int, want []netip.Prefix) error {
	had, err := r.assignedAddrs(index)
	return errors.Join(err, replace(had, want,
		func(p netip.Prefix) error { return r.address(unix.RTM_DELADDR, 0, index, p) },
		func(p netip.Prefix) error {
			err := r.address(unix.RTM_NEWADDR, createOnly, index, p)
			switch {
			case !p.Addr().Is6():
			case errors.Is(err, unix.EINVAL) && mtu < MinIPv6MTU:
				err = fmt.Errorf("%w: IPv6 needs an MTU of at least %d, and the interface has %d",
					err, MinIPv6MTU, mtu)
			case errors.Is(err, unix.EACCES):
				err = fmt.Errorf("%w: IPv6 is disabled on the interface (sysctl disable_ipv6)", err)
			}
			return err
		}))
}

// deriveLinkLocal has the kernel derive the link-local address of an interface from its MAC. An interface
// without IPv6 has none (EAFNOSUPPORT).
func (r *rtnl) deriveLinkLocal(index int) error {
	mode := nl.NewRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_EUI64})
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nl.NewRtAttr(unix.AF_INET6, mode.Serialize()).Serialize())
	if err := r.set(unix.RTM_SETLINK, linkMessage(index), spec); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("derive the link-local address from the MAC: %w", err)
	}
	return nil
}

// MinIPv6MTU is the smallest MTU with which an interface can have IPv6 addresses (RFC 8200, section 5).
const MinIPv6MTU = 1280

// createOnly makes the kernel add an object, and fail with EEXIST if there is one.
const createOnly = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// replace removes what is not wanted, and then adds what is. What exists already counts as added.
func replace[T comparable](had, want []T, remove, add func(T) error) (err error) {
	for _, x := range had {
		if !slices.Contains(want, x) {
			err = errors.Join(err, remove(x))
		}
	}
	for _, x := range want {
		if e := add(x); !errors.Is(e, unix.EEXIST) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// address sends a request about an address of an interface.
func (r *rtnl) address(kind, flags, index int, p netip.Prefix) error {
	msg := nl.NewIfAddrmsg(family(p.Addr()))
	msg.Index, msg.Prefixlen = uint32(index), uint8(p.Bits())
	ip := p.Addr().AsSlice()
	err := r.send(kind, flags|unix.NLM_F_ACK, 0, []nl.NetlinkRequestData{
		msg,
		nl.NewRtAttr(unix.IFA_LOCAL, ip),
		nl.NewRtAttr(unix.IFA_ADDRESS, ip),
		nl.NewRtAttr(ifaProto, []byte{assignedProto}),
	}, ignore)
	if err != nil {
		return fmt.Errorf("address %v: %w", p, err)
	}
	return nil
}

// assignedAddrs lists the addresses that Assign has added to an interface.
func (r *rtnl) assignedAddrs(index int) (out []netip.Prefix, err error) {
	msg := nl.NewIfAddrmsg(netlink.FAMILY_ALL)
	msg.Index = uint32(index)
	begin := func() { out = nil }
	err = r.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, begin, func(m []byte) bool {
		if len(m) < unix.SizeofIfAddrmsg || int(binary.NativeEndian.Uint32(m[4:])) != index {
			return true
		}
		attrs := attributes(m[unix.SizeofIfAddrmsg:])
		ip, ok := netip.AddrFromSlice(attrs[unix.IFA_ADDRESS])
		if proto := attrs[ifaProto]; ok && len(proto) == 1 && proto[0] == assignedProto {
			out = append(out, netip.PrefixFrom(ip, int(m[1])))
		}
		return true
	}, msg)
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	return out, nil
}

func (r *rtnl) assignRoutes(index int, want []Route) error {
	had, err := r.assignedRoutes(index)
	return errors.Join(err, replace(had, want,
		func(route Route) error { return r.route(unix.RTM_DELROUTE, 0, index, route) },
		func(route Route) error { return r.route(unix.RTM_NEWROUTE, createOnly, index, route) }))
}

// route sends a request about a route in the main table.
func (r *rtnl) route(kind, flags, index int, route Route) error {
	to := route.To
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: uint8(family(to.Addr())), Dst_len: uint8(to.Bits()), Table: unix.RT_TABLE_MAIN,
		Protocol: assignedProto, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST,
	}}
	data := []nl.NetlinkRequestData{
		msg,
		nl.NewRtAttr(unix.RTA_DST, to.Addr().AsSlice()),
		uint32Attr(unix.RTA_OIF, uint32(index)),
	}
	if route.Via.IsValid() {
		msg.Scope = unix.RT_SCOPE_UNIVERSE
		data = append(data, nl.NewRtAttr(unix.RTA_GATEWAY, route.Via.AsSlice()))
	}
	if err := r.send(kind, flags|unix.NLM_F_ACK, 0, data, ignore); err != nil {
		return fmt.Errorf("route %v: %w", route, err)
	}
	return nil
}

// assignedRoutes lists the routes that Assign has added to an interface.
func (r *rtnl) assignedRoutes(index int) (out []Route, err error) {
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		var some []Route
		begin := func() { some = nil }
		err := r.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, begin, func(m []byte) bool {
			if len(m) < unix.SizeofRtMsg || m[5] != assignedProto {
				return true
			}
			attrs, bits := attributes(m[unix.SizeofRtMsg:]), int(m[1])
			if oif := attrs[unix.RTA_OIF]; len(oif) != 4 || int(binary.NativeEndian.Uint32(oif)) != index {
				return true
			}
			to, ok := netip.AddrFromSlice(attrs[unix.RTA_DST])
			if !ok { // the default route
				to = netip.IPv4Unspecified()
				if f == unix.AF_INET6 {
					to = netip.IPv6Unspecified()
				}
			}
			via, _ := netip.AddrFromSlice(attrs[unix.RTA_GATEWAY])
			some = append(some, Route{netip.PrefixFrom(to, bits), via})
			return true
		}, &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(f), Protocol: assignedProto}})
		if err != nil {
			return nil, fmt.Errorf("list the routes: %w", err)
		}
		out = append(out, some...)
	}
	return out, nil
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ignore ignores the messages that answer a request.
func ignore([]byte) bool { return true }
