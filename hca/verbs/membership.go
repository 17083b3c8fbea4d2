package verbs

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// membership is the membership of a netdev in an IP multicast group. Without it, the NIC
// and the kernel drop the group's packets before RoCE sees them. Each membership has its
// own socket, which receives nothing, so that the limit of memberships per socket
// (net.ipv4.igmp_max_memberships) does not matter.
type membership struct{ fd int }

// joinGroup makes the netdev with an index a member of a group.
func joinGroup(group netip.Addr, index int) (*membership, error) {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: socket: %w", hca.ErrNoMemory, err)
	}
	if err := join(fd, group, index); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: join %v on interface %d: %w", hca.ErrInvalid, group, index, err)
	}
	return &membership{fd}, nil
}

func join(fd int, group netip.Addr, index int) error {
	if group.Is4() {
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)})
	}
	return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
		&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
}

// leave ends the membership. m may be nil.
func (m *membership) leave() {
	if m != nil {
		_ = unix.Close(m.fd)
	}
}
