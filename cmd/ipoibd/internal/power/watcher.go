package power

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	// retryEvery is the time between two attempts to find logind.
	retryEvery = time.Second
	// absentRetry bounds that time while there is no bus, as in most containers: it doubles with each
	// attempt.
	absentRetry = time.Minute
)

// Hooks are called one at a time, on a goroutine of their own. None may be nil.
type Hooks struct {
	// Suspend ends the use of the fabric before it returns. Its context ends while the
	// system still waits.
	Suspend func(context.Context) error
	// Resume starts the use of the fabric again. Its context ends when the system goes to
	// sleep again.
	Resume func(context.Context) error
	// Stop permanently ends the use of the fabric before it returns.
	Stop func(context.Context) error
}

// watcher is one Watch; its goroutine owns it.
type watcher struct {
	hooks    Hooks
	log      *slog.Logger
	machine  machine
	logind   *logind          // nil: it is missing
	retry    <-chan time.Time // when to look for it again
	pause    time.Duration    // until then
	quiet    bool             // the log has already reported that it is missing
	lock     *Inhibitor
	cancel   context.CancelFunc // of the running hook; nil: none runs
	returned chan error         // from a hook
}

// Watch listens to logind until ctx ends. It then waits for a running hook, whose context
// has ended too, releases the inhibitor and returns. To make the system wait until the
// daemon has stopped, end ctx after everything else. Lock is what it holds, also at the start.
func Watch(ctx context.Context, hooks Hooks, lock *Inhibitor, log *slog.Logger) {
	w := &watcher{hooks: hooks, log: log, lock: lock, returned: make(chan error, 1)}
	w.machine.locked = lock.held()
	w.connect(ctx)
	for ctx.Err() == nil {
		var signals <-chan *dbus.Signal
		if w.logind != nil {
			signals = w.logind.signals
		}
		select {
		case <-ctx.Done():
		case <-w.retry:
			w.connect(ctx)
		case err := <-w.returned:
			w.conclude(err)
			w.step(ctx, returned{})
		case s, ok := <-signals:
			if !ok {
				w.miss(ctx, errors.New("lost the connection to the system bus"))
				break
			}
			switch ev := w.logind.read(s).(type) {
			case announced:
				w.step(ctx, ev)
			case lost:
				w.miss(ctx, errors.New("systemd-logind has left the system bus"))
			}
		}
	}
	if w.cancel != nil {
		w.conclude(<-w.returned)
	}
	w.lock.Release()
	if w.logind != nil {
		w.logind.conn.Close()
	}
}

// connect looks for logind.
func (w *watcher) connect(ctx context.Context) {
	l, err := listen(ctx)
	if err != nil {
		w.miss(ctx, err)
		return
	}
	w.logind, w.retry, w.pause, w.quiet = l, nil, 0, false
	w.step(ctx, found{l.system})
	if w.lock.held() {
		w.log.Info("the system waits for this daemon before it sleeps or shuts down", "limit", l.limit)
	}
}

// miss notes that logind is missing, and logs it once.
func (w *watcher) miss(ctx context.Context, err error) {
	if w.logind != nil {
		w.logind.conn.Close()
		w.logind = nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		w.pause = min(max(2*w.pause, retryEvery), absentRetry)
	} else {
		w.pause = retryEvery
	}
	w.retry = time.After(w.pause)
	w.step(ctx, lost{})
	if !w.quiet && ctx.Err() == nil {
		w.quiet = true
		level := slog.LevelInfo
		if errors.Is(err, fs.ErrNotExist) { // no system bus, as in most containers
			level = slog.LevelDebug
		}
		w.log.Log(ctx, level, "no notice of sleep and shutdown: "+
			"run 'ipoibd suspend' before the system sleeps, and 'ipoibd resume' afterwards", "reason", err)
	}
}

// step passes an event to the machine and carries out its actions.
func (w *watcher) step(ctx context.Context, ev event) {
	var err error
	for _, a := range w.machine.step(ev) {
		switch a {
		case takeLock:
			err = w.lock.take(ctx)
		case releaseLock:
			w.lock.Release()
		case cancelHook:
			w.cancel()
		case callSuspend, callResume, callStop:
			w.call(ctx, a)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("the system does not wait for this daemon before it sleeps or shuts down: "+
				"install polkit, or run 'ipoibd suspend' before it sleeps", "err", err)
		}
		w.step(ctx, denied{})
	}
}

// call calls a hook on its own goroutine.
func (w *watcher) call(ctx context.Context, a action) {
	hook := map[action]struct {
		text string
		call func(context.Context) error
	}{
		callSuspend: {"the system is about to sleep; suspending", w.hooks.Suspend},
		callResume:  {"the system is awake; resuming", w.hooks.Resume},
		callStop:    {"the system is about to shut down; stopping", w.hooks.Stop},
	}[a]
	if a == callSuspend {
		ctx, w.cancel = context.WithTimeout(ctx, w.logind.limit*8/10)
	} else {
		ctx, w.cancel = context.WithCancel(ctx)
	}
	w.log.Info(hook.text)
	go func() { w.returned <- hook.call(ctx) }()
}

// conclude ends a hook that has returned.
func (w *watcher) conclude(err error) {
	w.cancel()
	w.cancel = nil
	if err != nil && !errors.Is(err, context.Canceled) {
		w.log.Error("cannot suspend, resume or stop together with the system; "+
			"check the devices with 'ipoibd status'", "err", err)
	}
}
