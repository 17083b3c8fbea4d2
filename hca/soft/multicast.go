package soft

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
)

// lingerFor is how long a group stays joined after a QP has left it. A recovery that replaces a QP leaves its
// groups, and joins them again at once. So it needs no system call that waits for the kernel's rtnl lock:
// beside a process that kept making and removing namespaces, that took up to 0.4 s. Nor do switches that
// snoop IGMP or MLD see the host leave.
const lingerFor = 3 * time.Second

// lingering are the memberships of a group that no QP uses.
type lingering struct {
	count int
	lapse *time.Timer
}

// AttachMulticast implements [hca.QP]. It ignores the GID, because there is only one
// netdev. It may wait for the kernel's lock of all interfaces, so it does not hold that of the device.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.membership.Lock()
	defer d.membership.Unlock()
	err := q.mayAttach(group)
	if err == nil {
		err = d.join(group)
	}
	if err == nil && !q.attach(group) {
		d.leave(group)
		err = hca.ErrClosed
	}
	return verb("attach_mcast", g.MGID.String(), err)
}

// mayAttach returns nil if q can be attached to a group.
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

// attach makes q a member of a group, unless it was closed.
func (q *QP) attach(group netip.Addr) bool {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed.Load() {
		return false
	}
	r := d.routes.Load()
	d.routes.Store(r.withMembers(group, append(slices.Clip(r.groups[group]), q)))
	return true
}

// DetachMulticast implements [hca.QP]. It does not block.
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	d.membership.Lock()
	defer d.membership.Unlock()
	if !q.detach(group) {
		return verb("detach_mcast", g.MGID.String(), hca.ErrInvalid)
	}
	d.leave(group)
	return nil
}

// detach takes q out of a group, and reports whether it was a member.
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

// join joins a group, or uses a membership that lingers. d.membership is held.
func (d *Device) join(group netip.Addr) error {
	l := d.lingering[group]
	switch {
	case d.cfg.Peers != nil: // copies of multicasts are sent to each peer instead
		return nil
	case l == nil:
		return d.lanes[0].wire.Join(group)
	}
	if l.count--; l.count == 0 {
		l.lapse.Stop()
		delete(d.lingering, group)
	}
	return nil
}

// leave lets a membership of a group linger, and then ends it. d.membership is held.
func (d *Device) leave(group netip.Addr) {
	if d.cfg.Peers != nil || d.lost.Load() {
		return
	}
	l := d.lingering[group]
	if l == nil {
		l = &lingering{}
		l.lapse = time.AfterFunc(lingerFor, func() { d.lapse(group, l) })
		d.lingering[group] = l
	}
	l.count++
	l.lapse.Reset(lingerFor)
}

// lapse ends the memberships that have lingered.
func (d *Device) lapse(group netip.Addr, l *lingering) {
	d.membership.Lock()
	over := d.lingering[group] == l
	if over {
		delete(d.lingering, group)
	}
	d.membership.Unlock()
	for i := 0; over && i < l.count; i++ {
		_ = d.lanes[0].wire.Leave(group) // an error means that it has ended already, with its netdev
	}
}

// endLingering forgets the memberships that linger, because the transport is about to be closed.
func (d *Device) endLingering() {
	d.membership.Lock()
	defer d.membership.Unlock()
	for _, l := range d.lingering {
		l.lapse.Stop()
	}
	clear(d.lingering)
}
