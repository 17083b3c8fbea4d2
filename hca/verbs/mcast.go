//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"ipoibd/hca"
)

// groups are the groups of a QP and their memberships. A membership is nil on InfiniBand.
type groups struct {
	mu       sync.Mutex
	attached map[hca.MulticastGroup]*membership
}

func (g *groups) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.attached) > 0
}

// AttachMulticast implements [hca.QP]. On RoCE a netdev must also receive the group's
// packets, so it joins the IP multicast group.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	if err := q.enter(); err != nil {
		return refused("attach_mcast", g.MGID.String(), err)
	}
	defer q.leave()
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	if _, twice := q.groups.attached[g]; twice || !g.MGID.IsMulticast() {
		return refused("attach_mcast", g.MGID.String(), hca.ErrInvalid)
	}
	m, err := q.join(g)
	if err != nil {
		return err
	}
	raw := C.union_ibv_gid(g.MGID)
	if code := C.shim_attach_mcast(q.qp, &raw, C.uint16_t(g.MLID)); code != 0 {
		m.leave()
		return failed("attach_mcast", g.MGID.String(), errno(code))
	}
	if q.groups.attached == nil {
		q.groups.attached = map[hca.MulticastGroup]*membership{}
	}
	q.groups.attached[g] = m
	return nil
}

// join makes the netdev of a GID a member of the group, if the QP's port is Ethernet.
func (q *QP) join(g hca.MulticastGroup) (*membership, error) {
	a, err := q.query()
	if err != nil {
		return nil, err
	}
	num := max(a.Port, 1) // a QP in RESET has port 0
	port, err := q.pd.dev.portAttr(num)
	if err != nil || port.link_layer != C.IBV_LINK_LAYER_ETHERNET {
		return nil, err
	}
	index, err := q.pd.dev.member(num, g)
	if err != nil {
		return nil, refused("attach_mcast", g.MGID.String(), err)
	}
	m, err := joinGroup(g.MGID.Addr(), index)
	return m, refused("attach_mcast", g.MGID.String(), err)
}

// member returns the index of the interface that must join a group.
func (d *Device) member(port uint8, g hca.MulticastGroup) (int, error) {
	entries, err := d.gids()
	if err != nil {
		return 0, err
	}
	here, err := addresses()
	if err != nil {
		return 0, err
	}
	return netdev(entries, port, g, here)
}

// Reasons why no packets of a group could be received.
var (
	errNotHere = fmt.Errorf("%w: the GID is not an address in this network namespace, "+
		"so its netdev cannot join the group: "+
		"run in the network namespace of the netdev (a container: with the host's network)", hca.ErrInvalid)
	errFamily = fmt.Errorf("%w: the GID and the group are of different IP versions", hca.ErrInvalid)
)

// netdev returns the index of the interface behind the GID that is used to attach to a
// group.
func netdev(entries []cGIDEntry, port uint8, g hca.MulticastGroup, here map[address]bool) (int, error) {
	i := slices.IndexFunc(entries, func(e cGIDEntry) bool {
		return uint32(e.port_num) == uint32(port) && int(e.gid_index) == g.SGIDIndex
	})
	if i < 0 {
		return 0, fmt.Errorf("%w: no GID at index %d", hca.ErrInvalid, g.SGIDIndex)
	}
	switch a := gidAddress(&entries[i]); {
	case a.addr.Is4() != g.MGID.Addr().Is4():
		return 0, errFamily
	case !here[a]:
		return 0, errNotHere
	default:
		return a.index, nil
	}
}

// DetachMulticast implements [hca.QP]. If the device is gone, it still leaves the IP
// multicast group.
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	if err := q.enter(); err != nil {
		return refused("detach_mcast", g.MGID.String(), err)
	}
	defer q.leave()
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	m, ok := q.groups.attached[g]
	if !ok {
		return refused("detach_mcast", g.MGID.String(), hca.ErrInvalid)
	}
	raw := C.union_ibv_gid(g.MGID)
	err := failed("detach_mcast", g.MGID.String(), errno(C.shim_detach_mcast(q.qp, &raw, C.uint16_t(g.MLID))))
	if err == nil || errors.Is(err, hca.ErrIO) {
		m.leave()
		delete(q.groups.attached, g)
	}
	return err
}
