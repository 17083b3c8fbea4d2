package soft

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
)

// lingerFor is how long a group stays joined after a QP has left it. A recovery that replaces a QP leaves its
// groups, and joins them again at once. So it needs no system call that waits for the kernel's rtnl lock. Nor
// do switches that snoop IGMP or MLD see the host leave.
const lingerFor = 3 * time.Second

// lingering are the memberships of a group that no QP uses.
type lingering struct {
	count int
	lapse *time.Timer
}

// AttachMulticast implements [hca.QP]. It ignores the GID, because there is only one
// netdev. It may wait for the kernel's lock of all interfaces, so it does not hold the device's.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	d, group := q.dev, g.MGID.Addr()
	joined, err := q.reserve(group)
	if err == nil && !joined {
		err = d.lanes[0].wire.Join(group)
	}
	if err == nil {
		err = q.attach(group)
	}
	return verb("attach_mcast", g.MGID.String(), err)
}

// reserve returns an error if q cannot be attached to a group. Else it takes a membership that lingers, if there is
// one, and reports whether q has one now.
func (q *QP) reserve(group netip.Addr) (joined bool, err error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.usable(); err != nil {
		return false, err
	}
	if !group.IsMulticast() || d.routes.Load().isMember(group, q) {
		return false, hca.ErrInvalid
	}
	l := d.slow.lingering[group]
	switch {
	case d.cfg.Peers != nil: // copies of multicasts are sent to each peer instead
		return true, nil
	case l == nil:
		return false, nil
	}
	if l.count--; l.count == 0 {
		l.lapse.Stop()
		delete(d.slow.lingering, group)
	}
	return true, nil
}

// attach makes q a member of a group that has a membership for it.
func (q *QP) attach(group netip.Addr) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.routes.Load(), q.usable()
	if err == nil && r.isMember(group, q) {
		err = hca.ErrInvalid
	}
	if err != nil {
		d.linger(group)
		return err
	}
	d.routes.Store(r.withMembers(group, append(slices.Clip(r.groups[group]), q)))
	return nil
}

// DetachMulticast implements [hca.QP]. It does not block.
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
	d.linger(group)
	return nil
}

// linger lets a membership of a group linger, and then ends it. d.mu is held.
func (d *Device) linger(group netip.Addr) {
	if d.cfg.Peers != nil || d.lost.Load() || d.slow.closed {
		return
	}
	l := d.slow.lingering[group]
	if l == nil {
		l = &lingering{}
		l.lapse = time.AfterFunc(lingerFor, func() { d.lapse(group, l) })
		d.slow.lingering[group] = l
	}
	l.count++
	l.lapse.Reset(lingerFor)
}

// lapse ends the memberships that have lingered.
func (d *Device) lapse(group netip.Addr, l *lingering) {
	d.mu.Lock()
	over := d.slow.lingering[group] == l
	if over {
		delete(d.slow.lingering, group)
	}
	d.mu.Unlock()
	for i := 0; over && i < l.count; i++ {
		_ = d.lanes[0].wire.Leave(group) // an error means that it has ended already, with its netdev
	}
}

// endLingering forgets the memberships that linger, because the transport is about to be closed.
func (d *Device) endLingering() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.slow.lingering {
		l.lapse.Stop()
	}
	clear(d.slow.lingering)
}
