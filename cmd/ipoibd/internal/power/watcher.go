package power

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Pauses between two tries to reach the bus.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

var (
	errNoLogind = errors.New("systemd-logind is not on the system bus")
	errBusLost  = errors.New("the connection to the system bus has ended")
)

// Hooks are what the watcher calls, one at a time, on a goroutine of its own. All
// of them must be there.
type Hooks struct {
	// Suspend ends the use of the fabric and returns when it has ended. Its
	// context ends while the system still waits.
	Suspend func(context.Context) error
	// Resume takes the fabric up again. Its context ends when the system goes
	// to sleep again.
	Resume func(context.Context) error
	// Stop ends the use of the fabric for good and returns when it has ended.
	Stop func()
}

// Watcher listens to logind.
type Watcher struct {
	hooks Hooks
	log   *slog.Logger
}

// New returns a watcher that does nothing before Run.
func New(hooks Hooks, log *slog.Logger) *Watcher { return &Watcher{hooks: hooks, log: log} }

// run is the state of one Run, which its goroutine owns.
type run struct {
	*Watcher
	machine machine
	logind  *logind             // nil while there is no bus
	signals <-chan *dbus.Signal // logind's
	lock    *os.File            // nil while there is none, or none was granted

	cancel   context.CancelFunc // of the hook under way; nil: none is
	returned chan error         // the error of the hook
	retry    time.Time          // earliest time of the next try to reach the bus
	pause    time.Duration
	quiet    bool // the log says already that logind is missing
}

// Run listens until ctx ends, waits for a hook under way (whose context has
// ended too), gives the inhibitor back and returns nil. A daemon that is to be
// waited for until it has stopped ends ctx last.
func (w *Watcher) Run(ctx context.Context) error {
	r := &run{Watcher: w, returned: make(chan error, 1)}
	for ctx.Err() == nil {
		if r.logind == nil && !time.Now().Before(r.retry) {
			r.connect(ctx)
		}
		r.step(ctx, tick{})
		r.wait(ctx)
	}
	if r.cancel != nil {
		r.conclude(<-r.returned)
	}
	r.release()
	if r.logind != nil {
		r.logind.conn.Close()
	}
	return nil
}

func (r *run) connect(ctx context.Context) {
	l, err := listen(ctx)
	switch {
	case err == nil:
		r.logind, r.signals = l, l.signals
		r.meet(ctx)
	case ctx.Err() == nil:
		r.miss(err)
	}
}

// meet handles a new owner of logind's name, or none.
func (r *run) meet(ctx context.Context) {
	r.step(ctx, lost{})
	r.pause = 0
	if r.logind.owner == "" {
		r.miss(errNoLogind)
		return
	}
	r.quiet = false
	limit, system, err := r.logind.ask()
	r.log.Info("the system's sleep and shutdown wait for this daemon", "limit", limit)
	r.step(ctx, found{limit})
	if err == nil {
		r.step(ctx, told{system})
	}
}

// miss logs once that logind is missing, and sets the time of the next try.
func (r *run) miss(err error) {
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.retry = time.Now().Add(r.pause)
	if !r.quiet {
		r.quiet = true
		r.log.Info("this daemon does not hear when the system goes to sleep or shuts down; order 'ipoibd suspend' before and 'ipoibd resume' after", "reason", err)
	}
}

// wait waits for one thing to happen and handles it.
func (r *run) wait(ctx context.Context) {
	at, wanted := r.machine.deadline()
	if r.logind == nil && (!wanted || r.retry.Before(at)) {
		at, wanted = r.retry, true
	}
	var timer <-chan time.Time
	if wanted {
		timer = time.After(time.Until(at))
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case err := <-r.returned:
		r.conclude(err)
		r.step(ctx, returned{})
	case s, ok := <-r.signals:
		if !ok {
			r.logind, r.signals = nil, nil
			r.step(ctx, lost{})
			r.miss(errBusLost)
			return
		}
		moved, prepares := r.logind.read(s)
		if moved {
			r.meet(ctx)
		} else if prepares != nil {
			r.step(ctx, prepares)
		}
	}
}

// step lets the machine decide and does what it says.
func (r *run) step(ctx context.Context, ev event) {
	var err error
	for _, a := range r.machine.step(time.Now(), ev, nil) {
		switch a {
		case takeLock:
			r.lock, err = inhibit(ctx)
		case releaseLock:
			r.release()
		case cancelHook:
			r.cancel()
		case callSuspend, callResume, callStop:
			r.call(ctx, a)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("the system's sleep and shutdown do not wait for this daemon", "err", err)
		}
		r.step(ctx, denied{})
	}
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
	go func() {
		var err error
		switch hook {
		case callSuspend:
			err = r.hooks.Suspend(ctx)
		case callResume:
			err = r.hooks.Resume(ctx)
		default:
			r.hooks.Stop()
		}
		r.returned <- err
	}()
}

// conclude ends a hook that has returned.
func (r *run) conclude(err error) {
	r.cancel()
	r.cancel = nil
	if err != nil && !errors.Is(err, context.Canceled) {
		r.log.Error("the system changes its power state, and this daemon cannot follow", "err", err)
	}
}
