package power

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Pauses between two attempts to reach the bus.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

var errNoLogind = errors.New("systemd-logind is not on the system bus")

// Hooks are called one at a time, on a goroutine of their own. None may be nil.
type Hooks struct {
	// Suspend ends the use of the fabric before it returns. Its context ends while the
	// system still waits.
	Suspend func(context.Context) error
	// Resume starts the use of the fabric again. Its context ends when the system goes to
	// sleep again.
	Resume func(context.Context) error
	// Stop permanently ends the use of the fabric before it returns.
	Stop func()
}

// watcher is one Watch; its goroutine owns it.
type watcher struct {
	hooks   Hooks
	log     *slog.Logger
	machine machine
	logind  *logind            // nil: no connection to the bus
	lock    *os.File           // the inhibitor; nil: none
	cancel  context.CancelFunc // of the running hook; nil: none runs

	returned chan error       // from a hook
	retry    <-chan time.Time // when to connect again
	pause    time.Duration    // before that
	quiet    bool             // the log has already reported that logind is missing
}

// Watch listens to logind until ctx ends. It then waits for a running hook, whose context
// has ended too, releases the inhibitor and returns. To make the system wait until the
// daemon has stopped, end ctx after everything else.
func Watch(ctx context.Context, hooks Hooks, log *slog.Logger) {
	w := &watcher{hooks: hooks, log: log, returned: make(chan error, 1)}
	w.connect(ctx)
	for ctx.Err() == nil {
		w.wait(ctx)
	}
	if w.cancel != nil {
		w.conclude(<-w.returned)
	}
	w.release()
	if w.logind != nil {
		w.logind.conn.Close()
	}
}

// connect connects to the bus and finds out whether logind is there.
func (w *watcher) connect(ctx context.Context) {
	if w.logind != nil {
		w.logind.conn.Close()
	}
	var err error
	if w.logind, err = listen(ctx); err != nil {
		w.miss(ctx, err)
		return
	}
	w.pause = 0
	if w.logind.owner == "" {
		w.miss(ctx, errNoLogind)
		return
	}
	w.quiet = false
	w.step(ctx, w.logind.found)
	if w.lock != nil {
		w.log.Info("the system waits for this daemon before it sleeps or shuts down", "limit", w.machine.limit)
	}
}

// miss logs once that logind is missing. Without a connection it sets the time of the next
// attempt.
func (w *watcher) miss(ctx context.Context, err error) {
	if w.logind == nil {
		w.pause = min(max(2*w.pause, firstRetry), lastRetry)
		w.retry = time.After(w.pause)
	}
	if !w.quiet && ctx.Err() == nil {
		w.quiet = true
		w.log.Info("no notice of sleep and shutdown: run 'ipoibd suspend' before the system sleeps, and 'ipoibd resume' afterwards", "reason", err)
	}
}

// wait waits for one thing to happen and handles it.
func (w *watcher) wait(ctx context.Context) {
	var timer <-chan time.Time
	if at, wanted := w.machine.deadline(); wanted {
		timer = time.After(time.Until(at))
	}
	var signals <-chan *dbus.Signal
	if w.logind != nil {
		signals = w.logind.signals
	}
	select {
	case <-ctx.Done():
	case <-timer:
		w.step(ctx, tick{})
	case <-w.retry:
		w.connect(ctx)
	case err := <-w.returned:
		w.conclude(err)
		w.step(ctx, returned{})
	case s, ok := <-signals:
		if !ok {
			w.logind = nil
			w.step(ctx, lost{})
			w.miss(ctx, errors.New("the connection to the system bus has ended"))
			return
		}
		switch ev := w.logind.read(s).(type) {
		case announced:
			w.step(ctx, ev)
		case lost:
			w.step(ctx, ev)
			if w.logind.owner == "" {
				w.miss(ctx, errNoLogind)
			} else {
				w.connect(ctx)
			}
		}
	}
}

// step passes an event to the machine and carries out its actions.
func (w *watcher) step(ctx context.Context, ev event) {
	var err error
	for _, a := range w.machine.step(time.Now(), ev, nil) {
		switch a {
		case takeLock:
			w.lock, err = inhibit(ctx)
		case releaseLock:
			w.release()
		case cancelHook:
			w.cancel()
		case callSuspend, callResume, callStop:
			w.call(ctx, a)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("the system does not wait for this daemon before it sleeps or shuts down", "err", err)
		}
		w.step(ctx, denied{})
	}
}

func (w *watcher) release() {
	if w.lock != nil {
		w.lock.Close()
		w.lock = nil
	}
}

// call calls a hook on its own goroutine.
func (w *watcher) call(ctx context.Context, hook action) {
	if hook == callSuspend {
		ctx, w.cancel = context.WithDeadline(ctx, w.machine.hookBy)
	} else {
		ctx, w.cancel = context.WithCancel(ctx)
	}
	go func() {
		var err error
		switch hook {
		case callSuspend:
			w.log.Info("the system is about to sleep; suspending")
			err = w.hooks.Suspend(ctx)
		case callResume:
			w.log.Info("the system is awake; resuming")
			err = w.hooks.Resume(ctx)
		default:
			w.log.Info("the system is about to shut down; stopping")
			w.hooks.Stop()
		}
		w.returned <- err
	}()
}

// conclude ends a hook that has returned.
func (w *watcher) conclude(err error) {
	w.cancel()
	w.cancel = nil
	if err != nil && !errors.Is(err, context.Canceled) {
		w.log.Error("cannot follow the system's sleep", "err", err)
	}
}
