package soft

import (
	"slices"

	"ipoibd/hca"
)

// AttachMulticast implements [hca.QP]. It ignores the GID, because there is only one
// netdev.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	err := q.usable()
	switch {
	case err != nil:
	case !group.IsMulticast() || r.isMember(group, q):
		err = hca.ErrInvalid
	case d.cfg.Peers == nil:
		err = d.lanes[0].wire.Join(group)
	}
	if err != nil {
		return verb("attach_mcast", g.MGID.String(), err)
	}
	d.routes.Store(r.withMembers(group, append(slices.Clip(r.groups[group]), q)))
	return nil
}

// DetachMulticast implements [hca.QP].
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	if !r.isMember(group, q) {
		return verb("detach_mcast", g.MGID.String(), hca.ErrInvalid)
	}
	others := slices.DeleteFunc(slices.Clone(r.groups[group]), func(m *QP) bool { return m == q })
	d.routes.Store(r.withMembers(group, others))
	if d.cfg.Peers != nil || d.lost.Load() {
		return nil
	}
	return verb("detach_mcast", g.MGID.String(), d.lanes[0].wire.Leave(group))
}
