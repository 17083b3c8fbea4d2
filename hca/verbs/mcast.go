//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/hca"
)

// groupKey is what a QP is attached to.
type groupKey struct {
	mgid hca.GID
	mlid uint16
}

// groups are the groups of a QP, each with its membership; nil for none, as on
// InfiniBand.
type groups struct {
	mu       sync.Mutex
	attached map[groupKey]*membership
}

func (g *groups) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.attached) > 0
}

// AttachMulticast implements [hca.QP]. On RoCE the netdevs of the device must
// take the group's packets too, so they join it as a host does.
func (q *QP) AttachMulticast(mgid hca.GID, mlid uint16) error {
	if err := q.enter(); err != nil {
		return refused("attach_mcast", mgid.String(), err)
	}
	defer q.leave()
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	key := groupKey{mgid, mlid}
	if _, twice := q.groups.attached[key]; twice || !mgid.IsMulticast() {
		return refused("attach_mcast", mgid.String(), hca.ErrInvalid)
	}
	m, err := q.join(mgid)
	if err != nil {
		return err
	}
	raw := C.union_ibv_gid(mgid)
	if code := C.shim_attach_mcast(q.qp, &raw, C.uint16_t(mlid)); code != 0 {
		m.leave()
		return failed("attach_mcast", mgid.String(), errno(code))
	}
	if q.groups.attached == nil {
		q.groups.attached = map[groupKey]*membership{}
	}
	q.groups.attached[key] = m
	return nil
}

// join makes the netdevs of the QP's port members, where it is one of Ethernet.
func (q *QP) join(mgid hca.GID) (*membership, error) {
	a, err := q.query()
	if err != nil {
		return nil, err
	}
	port, err := q.pd.dev.portAttr(max(a.Port, 1)) // 0: in RESET
	if err != nil || port.link_layer != C.IBV_LINK_LAYER_ETHERNET {
		return nil, err
	}
	indices, err := q.pd.dev.members(max(a.Port, 1), mgid.Addr())
	if err != nil {
		return nil, refused("attach_mcast", mgid.String(), err)
	}
	m, err := joinGroup(mgid.Addr(), indices)
	return m, refused("attach_mcast", mgid.String(), err)
}

// members are the indices of the interfaces that join a group, one at least.
func (d *Device) members(port uint8, group netip.Addr) ([]int, error) {
	entries, err := d.gids()
	if err != nil {
		return nil, err
	}
	here, err := addresses()
	if err != nil {
		return nil, err
	}
	indices := netdevs(entries, port, group.Is4(), here)
	if len(indices) == 0 {
		return nil, errNotHere
	}
	return indices, nil
}

// errNotHere: nothing would be received.
var errNotHere = fmt.Errorf("%w: no GID of the port is an address in this network namespace, so no netdev can join: "+
	"run in that of the netdev under it (a container: with the host's network)", hca.ErrInvalid)

// netdevs are the interface indices behind a port's RoCE v2 GIDs of a family, those
// of other network namespaces left out.
func netdevs(entries []cGIDEntry, port uint8, v4 bool, here map[address]bool) (indices []int) {
	for i := range entries {
		e := &entries[i]
		a := gidAddress(e)
		if uint32(e.port_num) == uint32(port) && gidType(uint32(e.gid_type)) == hca.GIDTypeRoCEv2 &&
			a.addr.Is4() == v4 && here[a] && !slices.Contains(indices, a.index) {
			indices = append(indices, a.index)
		}
	}
	return indices
}

// DetachMulticast implements [hca.QP]. A group that the device does not know
// any more is left all the same.
func (q *QP) DetachMulticast(mgid hca.GID, mlid uint16) error {
	if err := q.enter(); err != nil {
		return refused("detach_mcast", mgid.String(), err)
	}
	defer q.leave()
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	key := groupKey{mgid, mlid}
	m, ok := q.groups.attached[key]
	if !ok {
		return refused("detach_mcast", mgid.String(), hca.ErrInvalid)
	}
	raw := C.union_ibv_gid(mgid)
	err := failed("detach_mcast", mgid.String(), errno(C.shim_detach_mcast(q.qp, &raw, C.uint16_t(mlid))))
	if err == nil || errors.Is(err, hca.ErrIO) {
		m.leave()
		delete(q.groups.attached, key)
	}
	return err
}
