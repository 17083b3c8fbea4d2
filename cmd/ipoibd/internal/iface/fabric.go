package iface

import (
	"cmp"
	"errors"
	"fmt"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// fabric is the device's side: it attaches the lanes to a session and detaches them, on a worker, which calls the
// verbs. Even without an attachment the worker may still be closing one.
type fabric struct {
	name      string // of the interface
	dev       *device.Device
	tap       TAP
	lanes     *lanes
	worker    worker
	badClient badClient

	want   port.Want
	member membership
	host   hostSide
	att    *attachment // in use; nil: none
	coming *attachment // being opened; nil: none
	onTAP  Offloads    // belongs to the worker while that is busy
	used   uint64      // instance of the session that was used last
	qpn    hca.QPN     // wanted for the next queue pair; 0: any

	wantsFast bool  // the device should have fast paths
	noFast    error // why the interface cannot have one; nil: it can
}

// hostSide is what the use of the device depends on at the host's side.
type hostSide struct {
	present bool
	down    error // why there must be no queue pair; nil: ib0 is up
	netdev  int   // index of ib0; 0: it is in another network namespace
	mac     [6]byte
}

// errSessionEnded means that the device has gone since its view was read.
var errSessionEnded = fmt.Errorf("the session of the device has ended: %w", hca.ErrClosed)

// held returns the attachment in use or being opened, or nil.
func (f *fabric) held() *attachment { return cmp.Or(f.att, f.coming) }

// target is a session, and the plan of the port to use on it. Failures are counted per target.
type target struct {
	session *device.Session
	plan    port.Plan
}

// follow adapts the memberships to a view of the device and to the host's side.
func (f *fabric) follow(view device.View) {
	f.member.follow(view, f.want, !f.host.present || f.host.down != nil)
}

// target returns the target on the device of a view, or an error that says why there is none.
func (f *fabric) target(view device.View) (to target, err error) {
	to.session = view.Session
	switch {
	case f.host.down != nil:
		err = f.host.down
	case view.Session == nil:
		err = view.Err
	default:
		want := f.want
		if f.att != nil {
			want.InUse = f.att.plan.GID
		}
		if f.member.session == view.Session {
			want.Joined = f.member.groups()
		}
		to.plan, err = view.Plan(want)
		if errors.Is(err, port.ErrNoGroup) && f.member.failed != nil {
			err = fmt.Errorf("%w: %w", err, f.member.failed)
		}
	}
	return to, err
}

// moved reports whether the port is no longer the one that an attachment was made for, by a
// comparison of the plans. If it differs even in its groups, a verb that was refused says
// nothing about the device.
func (f *fabric) moved(a *attachment, same func(was, is port.Plan) bool) bool {
	to, err := f.target(f.dev.View())
	return to.session == a.session && (err != nil || !same(a.plan, to.plan))
}

// open opens an attachment on the worker, and then calls the function then with it. Until then it is coming.
func (f *fabric) open(to target, gen uint32, then func(*attachment, error)) error {
	need := len(f.lanes.all)
	if most := to.session.Attr().MaxQueues; most < need {
		return fmt.Errorf("the device supports %d queues per queue pair, the interface needs %d: %w",
			most, need, hca.ErrInvalid)
	}
	if err := f.lanes.renew(); err != nil {
		return err
	}
	if !to.session.Acquire(f.name) {
		return errSessionEnded
	}
	a := &attachment{session: to.session, plan: to.plan, gen: gen}
	f.coming, f.used = a, to.session.Instance
	spec := endpoint.Spec{
		Plan: to.plan, Queues: need, SendWRs: f.lanes.sendWRs, RecvWRs: f.lanes.recvWRs,
		SendStride: ud.TxStride(ipoib.MaxMTU, to.session.Attr().MaxTSO),
		RecvStride: ud.RxStride(hca.MaxMTU, to.session.Attr().LRO),
		OnEvent:    f.lanes.signals.onEvent, QPN: f.qpn,
		OnRefused: func(err error) { f.member.log.Debug("the device has refused a group", "err", err) },
	}
	if spec.FastPath, a.noFast = f.fastSpec(); spec.FastPath != nil {
		a.netdev = spec.FastPath.Netdev
	}
	f.qpn = 0 // a recovery may need another one
	f.worker.do(func() func() {
		err := a.open(spec, f.tap, f.lanes, &f.onTAP)
		return func() { then(a, err) }
	})
	return nil
}

// fastSpec returns the fast path that a queue pair should have, nil for none, or why it cannot have one.
func (f *fabric) fastSpec() (*hca.FastPathSpec, error) {
	switch {
	case !f.wantsFast:
		return nil, nil
	case f.noFast != nil:
		return nil, f.noFast
	case f.host.netdev == 0:
		return nil, errors.New("the interface is in another network namespace than the underlay")
	}
	return &hca.FastPathSpec{Netdev: f.host.netdev, MAC: f.host.mac}, nil
}

// use calls do on the worker, with the attachment in use, and then continues with its
// result. If the use of the device has ended first, it only examines the error.
func (f *fabric) use(do func(*attachment) error, then func(*attachment, error)) {
	a := f.att
	f.worker.do(func() func() {
		err := do(a)
		return func() {
			if f.att != a {
				f.requestResetIfStuck(err)
				return
			}
			then(a, err)
		}
	})
}

// close has the worker close the attachment, whose lanes are halted, after the jobs queued before. It then releases the
// session, to be reset or not, and calls the function then.
func (f *fabric) close(forReset bool, then func(error)) {
	a := f.held()
	f.att, f.coming = nil, nil
	f.worker.do(func() func() {
		err := a.close(f.lanes)
		return func() {
			if forReset {
				f.badClient.release(a.session)
			} else {
				a.session.Release(f.name)
			}
			then(err)
		}
	})
}

// requestResetIfStuck requests a reset of the device if a verb outside a rung is stuck (R8).
func (f *fabric) requestResetIfStuck(err error) {
	if qprecovery.OfVerbError(qprecovery.VerbQueryQP, err) == qprecovery.ClassStuck {
		f.dev.Ask(f.used, qprecovery.ReasonVerbStuck)
	}
}
