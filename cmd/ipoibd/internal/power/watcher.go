package power

import (
	"context"
	"log/slog"
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

func (h *Hooks) call(ctx context.Context, which action) error {
	switch which {
	case callSuspend:
		return h.Suspend(ctx)
	case callResume:
		return h.Resume(ctx)
	default:
		h.Stop()
		return nil
	}
}

// Watcher listens to logind.
type Watcher struct {
	hooks Hooks
	log   *slog.Logger
}

// New returns a watcher that does nothing before Run.
func New(hooks Hooks, log *slog.Logger) *Watcher { return &Watcher{hooks: hooks, log: log} }

// Run listens until ctx ends, waits for a hook under way (whose context has
// ended too), gives the inhibitor back and returns nil. A daemon that is to be
// waited for until it has stopped ends ctx last.
func (w *Watcher) Run(ctx context.Context) error {
	r := &run{Watcher: w, returned: make(chan error, 1)}
	for ctx.Err() == nil {
		r.connect(ctx)
		r.step(ctx, tick{})
		r.wait(ctx)
	}
	r.end()
	return nil
}
