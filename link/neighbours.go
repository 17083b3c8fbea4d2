package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
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

// Neighbours lists the host's neighbours behind the interface, and behind its
// master: whom the host may send frames to without asking first. May block.
func (t *TAP) Neighbours() (out []Neighbour, err error) {
	err = t.visit(func(r *rtnl, l netlink.Link) (err error) {
		out, err = r.neighbours(l)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the neighbours of %s: %w", t.name, err)
	}
	return out, nil
}

func (r *rtnl) neighbours(l netlink.Link) ([]Neighbour, error) {
	out, err := r.neighboursOf(nil, l.Attrs().Index)
	if master := l.Attrs().MasterIndex; err == nil && master != 0 {
		out, err = r.neighboursOf(out, master)
	}
	return out, err
}

func (r *rtnl) neighboursOf(out []Neighbour, index int) ([]Neighbour, error) {
	var list []netlink.Neigh
	err := r.do(func(h *netlink.Handle) (err error) {
		list, err = h.NeighList(index, netlink.FAMILY_ALL)
		return err
	})
	for _, n := range list {
		if n.State&usable == 0 || len(n.HardwareAddr) != 6 {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			out = append(out, Neighbour{ip.Unmap(), [6]byte(n.HardwareAddr)})
		}
	}
	return out, err
}
