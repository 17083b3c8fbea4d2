package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
)

// target is one way of being up. Failures are counted for each anew.
type target struct {
	session *device.Session
	plan    port.Plan
}

// reconcile makes the attachment what the host's side and the device's view ask
// for, if the host's side is known yet.
func (f *Iface) reconcile() {
	if !f.host.now.Present {
		return
	}
	to, err := f.target()
	if to != f.fab.aim {
		f.fab.aim = to
		f.fab.retry.reset()
	}
	f.keep(to, err)
	switch {
	case err != nil:
		f.setReason(err)
	case f.fab.att == nil && !f.fab.retry.waiting(time.Now()):
		f.open(to)
	}
}

var errAdminDown = errors.New("interface is down")

// target says how to be up, or why not to.
func (f *Iface) target() (to target, err error) {
	view := f.fab.dev.View()
	to.session = view.Session
	switch n := int(f.cfg.Port); {
	case !f.host.now.Up:
		err = errAdminDown
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

// keep ends an attachment that is not what is asked for or does not work any
// more, and adapts one that need not end for that.
func (f *Iface) keep(to target, err error) {
	a := f.fab.att
	switch {
	case a == nil:
	case err != nil:
		f.detach(err.Error())
	case a.session != to.session || !a.plan.SameQP(to.plan):
		f.detach("the port has changed")
	default:
		f.adapt(to.plan)
	}
}

// adapt follows a change of the port that the queue pair lives on with. One that
// did not, as a send may have been too long already, is replaced without a
// pause.
func (f *Iface) adapt(plan port.Plan) {
	a := f.fab.att
	changed := a.plan != plan
	if changed {
		a.plan = plan
		f.fitMTU(plan)
		f.step(a.attached())
	}
	state, err := a.ep.State()
	if err == nil && state != hca.QPRTS {
		err = fmt.Errorf("queue pair has failed: it is in %s", state)
	}
	switch {
	case err != nil && changed:
		f.detach(err.Error())
	case err != nil:
		f.fail(err)
	}
}

// open is one try to be up.
func (f *Iface) open(to target) {
	f.fitMTU(to.plan)
	if err := f.attach(to.session, to.plan); err != nil {
		f.fail(fmt.Errorf("cannot open queue pair: %w", err))
		return
	}
	f.fab.retry.succeed(time.Now())
	f.fab.err = nil
}

// fail ends the attachment, if there is one, and plans another try.
func (f *Iface) fail(err error) {
	f.detach("it has failed")
	f.fab.retry.fail(time.Now())
	f.fab.err, f.fab.lastErr = err, err
	f.log.Error("queue pair failed; it and its CQs are made anew", "err", err, "retry_in", f.fab.retry.pause)
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
	f.host.now = st
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
	want := f.host.mtu.fit(largest)
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
		f.log.Warn("the kernel removes the IPv6 addresses of an interface below MTU 1280 for good", "mtu", mtu)
	}
	f.host.now.MTU, f.host.mtu.set = mtu, mtu
}

const minIPv6MTU = 1280 // RFC 8200, section 5
