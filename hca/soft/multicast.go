package soft

import (
	"net/netip"
	"slices"

	"ipoibd/hca"
)

// AttachMulticast implements [hca.QP]. It ignores the GID, because there is only one
// netdev. It waits for the kernel's lock of all interfaces, so it does not hold that of the device.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.membership.Lock()
	defer d.membership.Unlock()
	err := q.mayAttach(group)
	if err == nil && d.cfg.Peers == nil {
		err = d.lanes[0].wire.Join(group)
	}
	if err != nil {
		return verb("attach_mcast", g.MGID.String(), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	d.routes.Store(r.withMembers(group, append(slices.Clip(r.groups[group]), q)))
	return nil
}

// mayAttach returns nil if q can be attached to a group. Device.membership is held.
func (q *QP) mayAttach(group netip.Addr) error {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if !group.IsMulticast() || q.dev.routes.Load().isMember(group, q) {
		return hca.ErrInvalid
	}
	return nil
}

// DetachMulticast implements [hca.QP]. It waits as AttachMulticast does.
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.membership.Lock()
	defer d.membership.Unlock()
	if !q.detach(group) {
		return verb("detach_mcast", g.MGID.String(), hca.ErrInvalid)
	}
	if d.cfg.Peers != nil || d.lost.Load() {
		return nil
	}
	return verb("detach_mcast", g.MGID.String(), d.lanes[0].wire.Leave(group))
}

// detach takes q out of a group, and reports whether it was a member. Device.membership is held.
func (q *QP) detach(group netip.Addr) bool {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	if !r.isMember(group, q) {
		return false
	}
	others := slices.DeleteFunc(slices.Clone(r.groups[group]), func(m *QP) bool { return m == q })
	d.routes.Store(r.withMembers(group, others))
	return true
}
