package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Neighbour is an entry of the kernel's neighbour table with a hardware
// address.
type Neighbour struct {
	IP  netip.Addr
	MAC [6]byte
}

// usable are the states of entries whose address the kernel sends frames to
// (linux/neighbour.h).
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT

// Neighbours lists the host's neighbours on the interface and on its master to which the
// host can send frames without resolving an address first. May block.
func (t *TAP) Neighbours() (out []Neighbour, err error) {
	err = t.dev.eachNeighbour(usable, func(ip netip.Addr, n *netlink.Neigh) {
		if len(n.HardwareAddr) == 6 {
			out = append(out, Neighbour{ip, [6]byte(n.HardwareAddr)})
		}
	})
	return out, err
}

// Unresolved lists the addresses on the interface and on its master that the host is
// resolving. The kernel queues frames for them. May block.
func (t *TAP) Unresolved() (out []netip.Addr, err error) {
	err = t.dev.eachNeighbour(netlink.NUD_INCOMPLETE, func(ip netip.Addr, _ *netlink.Neigh) {
		out = append(out, ip)
	})
	return out, err
}

// eachNeighbour calls f for each entry that is in one of the states.
func (d *netdev) eachNeighbour(states int, f func(netip.Addr, *netlink.Neigh)) error {
	err := d.visit(func(r *rtnl, l netlink.Link) error {
		list, err := r.neighbours(l.Attrs().Index)
		if master := l.Attrs().MasterIndex; err == nil && master != 0 {
			var above []netlink.Neigh
			above, err = r.neighbours(master)
			list = append(list, above...)
		}
		for i := range list {
			ip, ok := netip.AddrFromSlice(list[i].IP)
			if ok && list[i].State&states != 0 {
				f(ip.Unmap(), &list[i])
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the neighbours of %s: %w", d.tun.name, err)
	}
	return nil
}

// neighbours returns the neighbour table of an interface.
func (r *rtnl) neighbours(index int) (list []netlink.Neigh, err error) {
	begin := func() { list = nil }
	err = r.dump(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, begin, func(m []byte) bool {
		n, err := netlink.NeighDeserialize(m)
		if err == nil && n.LinkIndex == index {
			list = append(list, *n)
		}
		return true
	}, &netlink.Ndmsg{}, uint32Attr(unix.NDA_IFINDEX, uint32(index)))
	return list, err
}
