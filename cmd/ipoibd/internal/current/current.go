package current

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/journal"
)

// ErrStopping means that the daemon stops before a change has ended.
var ErrStopping = fmt.Errorf("%w: %w", control.ErrUnavailable, fleet.ErrStopping)

// Options are the surroundings of a configuration.
type Options struct {
	Fleet *fleet.Fleet
	// Load returns the present configuration for a reload; nil: it does not come from a file.
	Load func() (*config.Config, error)
	// Admit returns an error if the daemon, which has dropped privileges, cannot carry out a
	// configuration; nil: it can carry out all.
	Admit   func(*config.Config) error
	Forget  bool // interfaces that are added at run time do not outlive the daemon
	Journal *journal.Journal
	Log     *slog.Logger
}

// Current is the configuration that is in effect.
type Current struct {
	opts    Options
	running context.Context // ends when the daemon is to stop
	own     *config.Config  // of this process, for Run to apply after a hand-over; nil: it is in effect

	loading  chan struct{}              // has a value while the file is loaded
	changing chan struct{}              // has a value while the fleet changes
	cfg      *config.Config             // applied last; guarded by changing
	left     map[string]json.RawMessage // requests that could not be taken back, by name; guarded by changing
	passed   fleet.Namespace            // for the change under way; guarded by changing
}

// New returns an empty configuration. running ends when the daemon is to stop: no change then waits any longer.
func New(running context.Context, opts Options) *Current {
	return &Current{
		opts: opts, running: running, cfg: &config.Config{},
		loading: make(chan struct{}, 1), changing: make(chan struct{}, 1),
	}
}

// Start begins with a configuration. After an error nothing of it runs. It is not bounded by the end of the daemon: a
// stop that comes during the start is an orderly one.
func (c *Current) Start(cfg *config.Config, ready func()) error {
	plan := fromNothing(cfg)
	made, err := c.opts.Fleet.Prepare(context.Background(), plan, &config.Config{}, cfg, fleet.Namespace{})
	if err != nil {
		if failed := made.Discard(); failed != nil {
			c.opts.Log.Error("cannot undo the start", "err", failed)
		}
		return err
	}
	ready()
	c.opts.Fleet.Commit(plan, made)
	c.cfg = cfg
	return nil
}

// fromNothing returns the plan that adds everything.
func fromNothing(cfg *config.Config) config.Plan {
	nothing := *cfg // the other fields cannot change
	nothing.Devices, nothing.Interfaces = nil, nil
	p, _ := config.MakePlan(&nothing, cfg)
	return p
}

// Continue begins with what another process runs: a configuration, for which made was made, and the requests of
// interfaces that do not run ([Current.TakeBack]). Run then applies own, unless that is in effect.
func (c *Current) Continue(cfg *config.Config, left map[string]json.RawMessage, made fleet.Made, own *config.Config) {
	c.opts.Fleet.Commit(fromNothing(cfg), made)
	c.cfg, c.left = cfg, left
	if !c.runs(own) {
		c.own = own
	}
}

// Works returns the configuration without the interfaces that have failed, and the requests of those that could not be
// taken back, by name. The lock is held.
func (c *Current) Works() (config.Config, map[string]json.RawMessage) {
	return *c.opts.Fleet.Works(c.cfg), c.left
}

// runs reports whether a configuration, with the interfaces that were added at run time, is in effect. The daemon
// does not serve yet.
func (c *Current) runs(cfg *config.Config) bool {
	next, err := cfg.WithRuntimeOf(c.cfg)
	if err != nil {
		return false
	}
	p, err := config.MakePlan(c.cfg, next)
	return err == nil && kept(p.Devices) && kept(p.Interfaces)
}

// kept reports whether nothing changes.
func kept[T config.Device | config.Interface](steps []config.Step[T]) bool {
	return !slices.ContainsFunc(steps, func(s config.Step[T]) bool { return s.Change != config.Kept })
}

// TryHold takes the lock, unless a change is under way or the daemon is stopping. The caller releases it.
func (c *Current) TryHold() (release func(), err error) {
	select {
	case c.changing <- struct{}{}:
	default:
		return nil, fmt.Errorf("%w: a change of the configuration or another hand-over is under way, or the daemon "+
			"is stopping", control.ErrUnavailable)
	}
	if c.running.Err() != nil {
		<-c.changing
		return nil, ErrStopping
	}
	return func() { <-c.changing }, nil
}

// Hold takes the lock for good, after a change under way.
func (c *Current) Hold() { c.changing <- struct{}{} }
