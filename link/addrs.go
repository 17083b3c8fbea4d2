package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxAddrs bounds the listed addresses of an interface in each family. The list is only
// used to announce addresses. Peers can also reach the host at the others, because they
// resolve each address.
const maxAddrs = 256

// unproven are the flags of an address that the host must not announce, because duplicate
// address detection has not finished or has failed (RFC 4862, section 5.4;
// linux/if_addr.h).
const unproven = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

// addrs returns the proven addresses of an interface, sorted: of each family the first
// maxAddrs in the kernel's order.
func (r *rtnl) addrs(index int) (out []netip.Prefix, err error) {
	msg := nl.NewIfAddrmsg(netlink.FAMILY_ALL)
	msg.Index = uint32(index)
	var seen [2]int // IPv4, IPv6
	begin := func() { out, seen = []netip.Prefix{}, [2]int{} }
	err = r.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, begin, func(m []byte) bool {
		of, p, ok := parseAddr(m)
		if !ok || of != index {
			return true
		}
		family := p.Addr().BitLen() / 128
		if seen[family]++; seen[family] <= maxAddrs {
			out = append(out, p)
		}
		return seen[1] < maxAddrs // IPv6 comes last
	}, msg)
	if errors.Is(err, unix.ENODEV) { // deleted in the meantime
		err = nil
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return out, err
}

// parseAddr reads a struct ifaddrmsg (linux/if_addr.h) and its attributes; ok is
// false for a malformed message or an unproven address. If IFA_ADDRESS is the address
// of a peer, IFA_LOCAL is the interface's own.
func parseAddr(m []byte) (index int, p netip.Prefix, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return 0, p, false
	}
	bits, flags := int(m[1]), uint32(m[2])
	index = int(binary.NativeEndian.Uint32(m[4:]))
	attrs := attributes(m[unix.SizeofIfAddrmsg:])
	if f := attrs[unix.IFA_FLAGS]; len(f) >= 4 {
		flags = binary.NativeEndian.Uint32(f)
	}
	addr, local := attrs[unix.IFA_ADDRESS], attrs[unix.IFA_LOCAL]
	if local != nil && !slices.Equal(local, addr) {
		addr, bits = local, 8*len(local)
	}
	ip, valid := netip.AddrFromSlice(addr)
	return index, netip.PrefixFrom(ip.Unmap(), bits), valid && flags&unproven == 0
}

// attributes returns the attributes of a netlink message by their types (struct rtattr,
// linux/rtnetlink.h), up to the first malformed one.
func attributes(m []byte) map[uint16][]byte {
	attrs := map[uint16][]byte{}
	for len(m) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(m))
		if length < unix.SizeofRtAttr || length > len(m) {
			break
		}
		attrs[binary.NativeEndian.Uint16(m[2:])] = m[unix.SizeofRtAttr:length]
		m = m[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(m)):]
	}
	return attrs
}
