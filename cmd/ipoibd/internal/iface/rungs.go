package iface

import (
	"errors"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// drainLimit bounds the wait for the completions of a queue pair that was moved
// to ERR. They come within microseconds; what has not come then is taken back.
const drainLimit = 5 * time.Millisecond

// query asks for the queue pair's state. It is in a CQ's that the cause may lie.
func (f *Iface) query(op uint64) {
	ep := f.fab.att.ep
	f.rec.worker.do(func() result {
		state, err := ep.State()
		return result{op: op, err: err, class: device.Classify(qprecovery.VerbQueryQP, err), state: state}
	})
}

// prove sends probes through a fresh queue pair that carries nothing else.
func (f *Iface) prove(op uint64) {
	ep, log := f.fab.att.ep, f.log
	f.rec.worker.do(func() result {
		frozen, err := ep.Prove()
		switch {
		case frozen:
			log.Error("freeze proven: the device answers no probe on a fresh queue pair either")
		case err == nil:
			log.Warn("freeze not proven: the device answers on a fresh queue pair, or its wire is full, or its port is down")
		}
		return result{op: op, err: err, class: device.Classify(qprecovery.VerbCreateQP, err), frozen: frozen}
	})
}

// runRung runs a rung.
func (f *Iface) runRung(run qprecovery.Run) {
	switch run.Rung {
	case qprecovery.RungDevice:
		f.startAnew(run)
	case qprecovery.RungResumeQP:
		a := f.fab.att
		f.rec.worker.do(func() result { return rungResult(run, a, a.ep.Resume(), nil) })
	default:
		f.rebuild(run)
	}
}

// rungResult classifies what the first verb that failed says.
func rungResult(run qprecovery.Run, a *attachment, err error, after func()) result {
	return result{op: run.Op, of: a, err: err, class: device.Classify(qprecovery.VerbModifyRTS, err), after: after}
}

// rebuild makes the queue pair anew, as far as the rung has it.
func (f *Iface) rebuild(run qprecovery.Run) {
	a := f.fab.att
	a.halt()
	f.rec.worker.do(func() result {
		if err := f.replace(a.ep, run); err != nil {
			return rungResult(run, a, err, nil)
		}
		qpn := a.ep.QP.Num() // an operation that the ladder gave up has the next one behind it
		return rungResult(run, a, nil, func() {
			a.gen = run.Gen
			f.renew(a, qpn)
		})
	})
}

// replace stops the old layers, takes back what was posted to them, and starts
// new ones (R10: each frame in flight is counted by how its request ended, or as
// dropped by the reset).
func (f *Iface) replace(ep *device.Endpoint, run qprecovery.Run) error {
	if run.Rung < qprecovery.RungRebuildCQ {
		if err := f.drain(ep); err != nil {
			return err
		}
	}
	err := ep.Stop(run.Rung)
	f.path.detach()
	if err == nil {
		err = ep.Start(run.Rung, run.Gen)
	}
	if err == nil {
		err = f.attachPath(ep, run.Gen)
	}
	return err
}

// drain has what is posted complete, each request by its own status. It fails
// only where the device does: a queue pair that refuses to move is flushed
// already, or is no better than one that is not there.
func (f *Iface) drain(ep *device.Endpoint) error {
	if err := ep.Fail(); errors.Is(err, hca.ErrIO) {
		return err
	}
	until := time.Now().Add(drainLimit)
	for _, drain := range []func(time.Time) error{f.path.tx.Drain, f.path.rx.Drain} {
		if err := drain(until); err != nil {
			f.log.Debug("drain", "err", err)
		}
	}
	return nil
}

// release closes everything that is held of the device.
func (f *Iface) release(op uint64) {
	a := f.fab.att
	if a == nil {
		f.heal(qprecovery.Done{Op: op})
		return
	}
	f.retire(a)
	a.closed = true
	f.rec.worker.do(func() result {
		err := f.close(a)
		return result{op: op, err: err, class: device.Classify(qprecovery.VerbDestroyQP, err)}
	})
}

// startAnew opens an endpoint on the device that is there again. Where the port
// cannot be used it is not recovery that waits for it.
func (f *Iface) startAnew(run qprecovery.Run) {
	to, err := f.target(f.fab.dev.View())
	if err == nil && !to.session.Acquire(f.cfg.Name) {
		err = hca.ErrClosed
	}
	if err != nil {
		f.stop(err.Error())
		return
	}
	f.fitMTU(to.plan)
	a := f.newAttachment(to.session, to.plan, run.Gen)
	f.rec.worker.do(func() result {
		err := f.open(a)
		r := rungResult(run, a, err, func() {
			if err != nil {
				to.session.Release(f.cfg.Name)
				return
			}
			f.adopt(a)
		})
		r.fresh = true
		return r
	})
}
