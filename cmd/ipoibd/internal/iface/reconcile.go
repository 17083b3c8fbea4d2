package iface

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
)

// reconcile makes the attachment what the host's side and the device's view ask
// for.
func (f *Iface) reconcile() {
	view := f.fab.dev.View()
	plan, err := f.target(view)
	if a := f.fab.att; a != nil && (err != nil || a.session != view.Session || a.plan != plan) {
		f.detach(changeReason(err))
	}
	f.setReason(err)
	if err != nil || f.fab.att != nil || f.fab.retry.waiting(time.Now()) {
		return
	}
	f.fitMTU(plan)
	if err := f.attach(view.Session, plan); err != nil {
		f.fab.retry.fail(time.Now())
		f.log.Error("cannot open queue pair", "err", err, "retry_in", f.fab.retry.pause)
		f.fab.err = err
	}
}

// changeReason says why an attachment ends.
func changeReason(err error) string {
	if err != nil {
		return err.Error()
	}
	return "the port has changed"
}

var errAdminDown = errors.New("interface is down")

// target says how the port is to be used, or why it is not.
func (f *Iface) target(view device.View) (port.Plan, error) {
	switch n := int(f.cfg.Port); {
	case !f.host.now.Up:
		return port.Plan{}, errAdminDown
	case view.Session == nil:
		return port.Plan{}, view.Err
	case n > len(view.Ports):
		return port.Plan{}, fmt.Errorf("device has no port %d: %w", n, hca.ErrInvalid)
	default:
		return port.MakePlan(view.Ports[n-1], f.fab.want)
	}
}

// setReason logs why the interface is not up, once for each reason.
func (f *Iface) setReason(err error) {
	if err != nil && (f.fab.err == nil || f.fab.err.Error() != err.Error()) {
		f.log.Info("not up", "reason", err)
	}
	f.fab.err = err
}

// hostChanged takes the kernel's view of ib0.
func (f *Iface) hostChanged(st link.State) {
	old := f.host.now
	f.host.now = st
	if st.MTU != old.MTU && old.Present && st.MTU != f.host.mtu.ours {
		f.host.mtu.ours = 0 // the operator's now
	}
	if a := f.fab.att; a != nil {
		f.fitMTU(a.plan)
	}
	if st.MAC != old.MAC {
		f.step(neigh.HostMAC{MAC: st.MAC})
	}
	if st.Master != old.Master || st.Up != old.Up {
		f.step(neigh.HostPortChanged{})
	}
	f.hostAddrs()
}

// fitMTU sets the MTU that the interface is to have under the plan.
func (f *Iface) fitMTU(plan port.Plan) {
	have := f.host.now.MTU
	want := f.host.mtu.fit(have, f.cfg.MTU, plan.MTU())
	f.path.tx.SetMTU(want)
	f.path.rx.SetMTU(plan.MTU()) // a peer may use all that the group allows
	if want == have {
		return
	}
	if err := f.host.tap.SetMTU(want); err != nil {
		f.log.Error("cannot set MTU", "mtu", want, "err", err)
		return
	}
	f.log.Info("MTU set", "mtu", want, "was", have, "largest", plan.MTU())
	if want < minIPv6MTU {
		f.log.Warn("the kernel removes the IPv6 addresses of an interface below MTU 1280 for good", "mtu", want)
	}
	f.host.mtu.ours, f.host.now.MTU = want, want
}

const minIPv6MTU = 1280 // RFC 8200, section 5
