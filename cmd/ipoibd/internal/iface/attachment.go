package iface

import (
	"errors"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// attachment is the interface's use of one session.
type attachment struct {
	session *device.Session
	plan    port.Plan
	gen     uint32             // of the queue pair
	ep      *endpoint.Endpoint // belongs to the worker; Run has only the following
	self    hca.UDDest
	groups  map[hca.GID]hca.UDDest // the groups of plan, by MGID
	ahs     *endpoint.AHWorkers
	refused *atomic.Int32 // how many groups of plan the device has refused
	fast    endpoint.FastPath
	netdev  int   // index of ib0 for the fast path; 0: none
	noFast  error // why the endpoint was not asked for a fast path, although one is wanted
}

// Offloads were last set on the TAP. The inspections of ib0 restore them, so neither a rung nor another process
// that takes over the interface has to set them again, and wait for the kernel's lock of all interfaces.
type Offloads struct {
	Wanted link.Offloads `json:"wanted"` // TUN_F_*
	Got    link.Offloads `json:"got"`
	Set    bool          `json:"set"`
}

// use sets the offloads of a TAP, unless they were set before, and returns those that it accepted.
func (o *Offloads) use(tap TAP, want link.Offloads) (got link.Offloads, err error) {
	if o.Set && o.Wanted == want {
		return o.Got, nil
	}
	got, err = tap.SetOffloads(want)
	*o = Offloads{want, got, err == nil}
	return got, err
}

// address is the interface's link-layer address.
func (a *attachment) address() ipoib.Addr { return ipoib.NewAddr(a.self.QPN, a.plan.GID) }

// ahResults delivers the handles that were made. On a nil attachment it never delivers.
func (a *attachment) ahResults() <-chan endpoint.AHResult {
	if a == nil {
		return nil
	}
	return a.ahs.Results()
}

// open opens the endpoint and attaches the lanes to it, on the worker. It turns on the offloads
// that the device supports. On error nothing is left behind except the use of the session.
func (a *attachment) open(spec endpoint.Spec, tap TAP, ls *lanes, onTAP *Offloads) (err error) {
	want := link.Offloads(0)
	if a.session.Attr().MaxTSO > 0 {
		want = link.AllOffloads
		if !a.session.Attr().USO {
			want &^= link.OffloadUSO
		}
	}
	got, err := onTAP.use(tap, want)
	if err != nil {
		return err
	}
	spec.LROUDP = got&link.OffloadUSO != 0
	if a.ep, err = endpoint.Open(a.session, spec, a.gen); err != nil {
		return err
	}
	if err := ls.attach(a, a.gen); err != nil {
		return errors.Join(err, a.close(ls))
	}
	a.self, a.groups, a.ahs, a.refused = a.ep.Self(), a.ep.Groups(), a.ep.AHs, &a.ep.Refused
	a.fast = a.fastPath()
	return nil
}

// fastPath returns the fast path of the queue pair, on the worker.
func (a *attachment) fastPath() endpoint.FastPath {
	if a.noFast != nil {
		return endpoint.FastPath{Err: a.noFast}
	}
	return a.ep.Fast
}

// close closes the endpoint, if there is one, on the worker. The lanes' pumps are halted.
func (a *attachment) close(ls *lanes) error {
	if a.ep == nil {
		return nil
	}
	err := a.ep.Close()
	a.ep = nil
	ls.detach()
	return err
}

// replace stops the layers that a rung rebuilds, takes back what was posted to them, and
// starts new ones, on the worker (R10: each frame in flight is counted by how its request
// ended, or as dropped by the reset).
func (a *attachment) replace(ls *lanes, run qprecovery.Run) error {
	if err := ls.hung(); err != nil {
		return err
	}
	if !run.Rung.Replaces(qprecovery.ScopeCQs) {
		if err := a.drain(ls); err != nil {
			return err
		}
	}
	err := a.ep.Stop(run.Rung)
	ls.detach()
	if err == nil {
		err = a.ep.Start(run.Rung, run.Gen)
	}
	if err == nil {
		err = ls.attach(a, run.Gen)
	}
	return err
}

// drain completes the posted requests, each with its own status. It fails only if the
// device fails or hangs: a queue pair that refuses to change its state has been flushed already, or can
// no longer complete anything.
func (a *attachment) drain(ls *lanes) error {
	if err := a.ep.Fail(); errors.Is(err, hca.ErrIO) {
		return err
	}
	until := time.Now().Add(drainLimit)
	for _, l := range ls.all {
		// Requests that do not complete in time are taken back.
		_ = l.call(l.sender, func() error { return l.tx.Drain(until) })
		_ = l.call(l.fetcher, func() error { return l.rx.Drain(until) })
	}
	return ls.hung()
}

// drainLimit bounds the wait for the completions of a queue pair that was moved
// to ERR. They come within microseconds.
const drainLimit = 5 * time.Millisecond
