package verbs

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// membership is that of netdevs in an IP multicast group: without it the NIC
// and the kernel drop the group's packets before RoCE sees them. It is held by a
// socket for each netdev, which receives nothing, so that no limit on the
// memberships of one socket counts (net.ipv4.igmp_max_memberships).
type membership struct{ fds []int }

// joinGroup makes netdevs members of a group.
func joinGroup(group netip.Addr, indices []int) (*membership, error) {
	m := &membership{}
	for _, index := range indices {
		if err := m.add(group, index); err != nil {
			m.leave()
			return nil, err
		}
	}
	return m, nil
}

func (m *membership) add(group netip.Addr, index int) error {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: socket: %w", hca.ErrNoMemory, err)
	}
	m.fds = append(m.fds, fd)
	if err := join(fd, group, index); err != nil {
		return fmt.Errorf("%w: join %v on interface %d: %w", hca.ErrInvalid, group, index, err)
	}
	return nil
}

func join(fd int, group netip.Addr, index int) error {
	if group.Is4() {
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)})
	}
	return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
		&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
}

// leave ends the membership; nil has none.
func (m *membership) leave() {
	if m == nil {
		return
	}
	for _, fd := range m.fds {
		_ = unix.Close(fd)
	}
}
