package power

import (
	"context"
	"errors"
	"os"
	"time"
)

// Pauses between two tries to reach the bus.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// run is the state of one Run, which its goroutine owns.
type run struct {
	*Watcher
	machine machine
	logind  *logind  // nil while there is no bus
	lock    *os.File // nil while there is none, or none was granted

	cancel   context.CancelFunc // of the hook under way; nil: none is
	returned chan error         // what the hook ended with
	retry    time.Time          // no bus is looked for before
	pause    time.Duration
	quiet    bool // that logind is missing has been said
}

// connect looks for the bus, if there is none and the pause is over.
func (r *run) connect(ctx context.Context) {
	if r.logind != nil || time.Now().Before(r.retry) {
		return
	}
	l, err := listen(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		r.miss(err)
		return
	}
	r.logind = l
	r.meet(ctx)
}

// meet takes up that logind's name has an owner, or has none.
func (r *run) meet(ctx context.Context) {
	r.step(ctx, lost{})
	r.pause = 0
	if r.logind.owner == "" {
		r.miss(errNoLogind)
		return
	}
	r.quiet = false
	limit := r.logind.limit()
	r.log.Info("the system's sleep and shutdown wait for this daemon", "limit", limit)
	r.step(ctx, found{limit})
	if s, err := r.logind.system(); err == nil {
		r.step(ctx, told{s})
	}
}

// miss says once that logind is missing. It is waited for where there is a bus;
// a bus is looked for after a pause.
func (r *run) miss(err error) {
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.retry = time.Now().Add(r.pause)
	if !r.quiet {
		r.quiet = true
		r.log.Info("this daemon does not hear when the system goes to sleep or shuts down; order 'ipoibd suspend' before and 'ipoibd resume' after", "reason", err)
	}
}

// wait waits for one thing to happen and takes it up.
func (r *run) wait(ctx context.Context) {
	timer, stop := r.timer()
	defer stop()
	select {
	case <-ctx.Done():
	case <-timer:
	case err := <-r.returned:
		r.conclude(ctx, err)
	case s, ok := <-r.logind.heard():
		switch {
		case !ok:
			r.disconnect(ctx)
		case r.logind.moved(s):
			r.meet(ctx)
		default:
			if system, ok := r.logind.prepares(s); ok {
				r.step(ctx, told{system})
			}
		}
	}
}

// timer fires when the machine or the search for the bus wants it to; the
// channel is nil when nothing does.
func (r *run) timer() (<-chan time.Time, func() bool) {
	at, wanted := r.machine.deadline()
	if r.logind == nil && (!wanted || r.retry.Before(at)) {
		at, wanted = r.retry, true
	}
	if !wanted {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(time.Until(at))
	return t.C, t.Stop
}

// disconnect takes up that the connection has ended.
func (r *run) disconnect(ctx context.Context) {
	r.logind = nil
	r.step(ctx, lost{})
	r.miss(errBusLost)
}

// step lets the machine decide and does what it says.
func (r *run) step(ctx context.Context, ev event) {
	granted := true
	for _, a := range r.machine.step(time.Now(), ev, nil) {
		switch a {
		case takeLock:
			granted = r.take(ctx)
		case releaseLock:
			r.release()
		case cancelHook:
			r.cancel()
		case callSuspend, callResume, callStop:
			r.call(ctx, a)
		}
	}
	if !granted {
		r.step(ctx, denied{})
	}
}

// take fetches an inhibitor and reports whether it was granted. Without one the
// system is still listened to.
func (r *run) take(ctx context.Context) bool {
	lock, err := inhibit(ctx)
	if err == nil {
		r.lock = lock
	} else if ctx.Err() == nil {
		r.log.Warn("the system's sleep and shutdown do not wait for this daemon", "err", err)
	}
	return err == nil
}

func (r *run) release() {
	if r.lock != nil {
		r.lock.Close()
		r.lock = nil
	}
}

// call calls a hook on its own goroutine.
func (r *run) call(ctx context.Context, hook action) {
	r.log.Info("the system changes its power state", "hook", hook)
	if hook == callSuspend {
		ctx, r.cancel = context.WithDeadline(ctx, r.machine.hookBy)
	} else {
		ctx, r.cancel = context.WithCancel(ctx)
	}
	go func() { r.returned <- r.hooks.call(ctx, hook) }()
}

// conclude takes up that the hook has returned.
func (r *run) conclude(ctx context.Context, err error) {
	r.cancel()
	r.cancel = nil
	r.report(err)
	r.step(ctx, returned{})
}

// report tells of a hook that failed, unless it was cancelled.
func (r *run) report(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		r.log.Error("the system changes its power state, and this daemon cannot follow", "err", err)
	}
}

// end waits for the hook under way and lets everything go.
func (r *run) end() {
	if r.cancel != nil {
		r.report(<-r.returned)
		r.cancel()
	}
	r.release()
	if r.logind != nil {
		r.logind.conn.Close()
	}
}
