package soft

import "ipoibd/hca"

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
		err = d.wire.Join(group)
	}
	if err != nil {
		return verb("attach_mcast", g.MGID.String(), err)
	}
	d.routes.Store(r.withMember(group, q))
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
	d.routes.Store(r.withoutMember(group, q))
	if d.cfg.Peers != nil || d.lost.Load() {
		return nil
	}
	return verb("detach_mcast", g.MGID.String(), d.wire.Leave(group))
}
