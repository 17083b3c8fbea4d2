package iface

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// target is one way of being up. Failures are counted for each anew.
type target struct {
	session *device.Session
	plan    port.Plan
}

// reconcile makes the attachment what the host's side and the device's view ask
// for, if the host's side is known yet and no operation is under way: after one
// it is called again. Recovery alone deals with the device's coming and going.
func (f *Iface) reconcile() {
	view := f.followDevice()
	if !f.host.now.Present || f.rec.worker.busy > 0 {
		return
	}
	to, err := f.target(view)
	if aim := f.fab.aim; to.session != aim.session || !to.plan.Equal(aim.plan) {
		f.fab.aim = to
		f.fab.retry.reset()
	}
	if err != nil {
		f.setReason(err)
	}
	f.keep(to, err)
	if f.fab.att == nil && err == nil && f.rec.ladder.State() == qprecovery.Idle && !f.fab.retry.waiting(time.Now()) {
		f.try(to)
	}
}

// target says how to be up on the device of this view, or why not to.
func (f *Iface) target(view device.View) (to target, err error) {
	to.session = view.Session
	switch n := int(f.cfg.Port); {
	case !f.host.now.Up:
		err = fmt.Errorf("interface is down; bring it up with 'ip link set %s up'", f.cfg.Name)
	case view.Session == nil:
		err = view.Err
	case n > len(view.Ports):
		err = fmt.Errorf("device has no port %d: %w", n, hca.ErrInvalid)
	default:
		to.plan, err = port.MakePlan(view.Ports[n-1], f.wish())
	}
	return to, err
}

// wish is what is asked of the port now.
func (f *Iface) wish() port.Want {
	w := f.fab.want
	if a := f.fab.att; a != nil {
		w.InUse = a.plan.GID
	}
	return w
}

// keep ends what is not asked for any more, and adapts an attachment that need
// not end for that.
func (f *Iface) keep(to target, err error) {
	a := f.fab.att
	switch {
	case err != nil && (to.session != nil || !f.host.now.Up) && f.rec.ladder.State() != qprecovery.Idle:
		f.stop(err.Error())
	case a == nil || err != nil || a.session != to.session:
	case !a.plan.SameQP(to.plan):
		f.stop("the port has changed")
	default:
		f.adapt(to.plan)
	}
}

// adapt follows a change of the port that the queue pair lives on with.
func (f *Iface) adapt(plan port.Plan) {
	a := f.fab.att
	if !a.plan.Equal(plan) {
		a.plan = plan
		f.fitMTU(plan)
		f.step(a.attached())
	}
}

// try is one try to be up.
func (f *Iface) try(to target) {
	f.fitMTU(to.plan)
	if err := f.attach(to.session, to.plan); err != nil {
		f.fail(fmt.Errorf("cannot open queue pair: %w", err))
		f.accuse(err)
		return
	}
	f.fab.retry.succeed(time.Now())
	f.fab.err = nil
}

// fail plans another try.
func (f *Iface) fail(err error) {
	f.fab.retry.fail(time.Now())
	f.fab.err, f.fab.lastErr = err, err
	f.log.Error("not up", "err", err, "retry_in", f.fab.retry.pause)
}

// setReason logs why the interface is not up, once for each reason.
func (f *Iface) setReason(err error) {
	if f.fab.err == nil || f.fab.err.Error() != err.Error() {
		f.log.Info("not up", "reason", err)
	}
	f.fab.err = err
}

// hostChanged takes the kernel's view of ib0.
func (f *Iface) hostChanged(st link.State) {
	old := f.host.now
	if old.Present {
		st.MAC = old.MAC // inspect restores it
	}
	f.host.now = st
	f.inspect(time.Now())
	f.mtuChanged(old)
	if st.MAC != old.MAC {
		f.step(neigh.HostMAC{MAC: st.MAC})
	}
	if st.Master != old.Master || st.Up != old.Up || alone(st) != alone(old) {
		f.step(neigh.HostPortChanged{Alone: alone(st)})
	}
	f.hostAddrs()
}

// alone reports whether the host itself lives on the interface, so that no other
// MAC is to be expected behind it: a port of a bridge has a master, and under a
// macvlan or a guest the interface has no address.
func alone(st link.State) bool {
	own := func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() }
	return st.Master == 0 && slices.ContainsFunc(st.Addrs, own)
}

// mtuChanged looks whether the operator changed the MTU. A state may have been
// read before we set it, so one that differs is read again.
func (f *Iface) mtuChanged(old link.State) {
	m, now := &f.host.mtu, &f.host.now
	switch {
	case !old.Present:
		m.found(now.MTU, f.cfg.MTU, f.host.adopted)
	case now.MTU != m.set:
		if again, err := f.host.tap.State(); err == nil && again.Present {
			now.MTU = again.MTU
		}
		m.changed(now.MTU)
	}
	if a := f.fab.att; a != nil {
		f.fitMTU(a.plan)
	}
}

// fitMTU sets the MTU that the interface is to have under the plan.
func (f *Iface) fitMTU(plan port.Plan) {
	largest := plan.MTU()
	want, tooLarge := f.host.mtu.fit(largest)
	if tooLarge > 0 {
		f.log.Warn(fmt.Sprintf("requested MTU is too large for the underlay; using %d", want), "requested", tooLarge, "mtu", want)
	}
	f.path.tx.SetMTU(want)
	f.path.rx.SetMTU(largest) // a peer may use all that the group allows
	if want != f.host.now.MTU {
		f.setMTU(want, largest)
	}
}

func (f *Iface) setMTU(mtu, largest int) {
	if err := f.host.tap.SetMTU(mtu); err != nil {
		f.log.Error("cannot set MTU", "mtu", mtu, "err", err)
		return
	}
	f.log.Info("MTU set", "mtu", mtu, "was", f.host.now.MTU, "largest", largest)
	if mtu < minIPv6MTU {
		f.log.Warn("MTU below 1280: the kernel has removed all IPv6 addresses", "mtu", mtu)
	}
	f.host.now.MTU, f.host.mtu.set = mtu, mtu
}

const minIPv6MTU = 1280 // RFC 8200, section 5
