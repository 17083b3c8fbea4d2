package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

var (
	errStopping = fmt.Errorf("%w: %w", control.ErrUnavailable, fleet.ErrStopping)
	errNoFile   = errors.New("this daemon runs without a configuration file (--config), so there is nothing to reload; restart it to change its flags")
)

// mistaken is an error that is control.ErrMistake as well.
type mistaken struct{ error }

// Unwrap makes errors.Is find both.
func (m *mistaken) Unwrap() []error { return []error{control.ErrMistake, m.error} }

// followHangups reloads the configuration after each SIGHUP, until the daemon stops.
func (d *daemon) followHangups() {
	for {
		select {
		case <-d.running.Done():
			return
		case <-d.opts.Hangup:
		}
		result, err := d.Reload(d.running)
		text := "configuration reloaded, but not completely"
		if err != nil {
			text = "configuration not reloaded; the old one stays in effect"
		} else {
			err = result.Err()
		}
		if err == nil || d.running.Err() != nil {
			continue
		}
		for line := range strings.Lines(err.Error()) {
			d.opts.Log.Error(text, "err", strings.TrimSpace(line))
		}
	}
}

// Reload applies the configuration file. If it returns an error, nothing has changed. Otherwise
// the result says what was done, and what of that has failed. Reloads wait for each other.
func (d *daemon) Reload(ctx context.Context) (report.Reload, error) {
	if d.opts.Load == nil {
		return report.Reload{}, errNoFile
	}
	if err := d.enter(ctx, d.loading); err != nil {
		return report.Reload{}, err
	}
	type loaded struct {
		cfg *config.Config
		err error
	}
	file := make(chan loaded, 1)
	go func() {
		cfg, err := d.opts.Load()
		file <- loaded{cfg, err}
	}()
	select {
	case got := <-file:
		defer func() { <-d.loading }()
		if got.err != nil {
			return report.Reload{}, &mistaken{got.err}
		}
		return d.change(ctx, got.cfg.WithRuntimeOf)
	case <-ctx.Done():
	case <-d.running.Done():
	}
	// The file system hangs. That delays later reloads, but neither this one nor a stop.
	go func() {
		<-file
		<-d.loading
	}()
	return report.Reload{}, fmt.Errorf("read configuration: %w", cmp.Or(ctx.Err(), errStopping))
}

// enter takes a lock, unless ctx ends or the daemon stops before.
func (d *daemon) enter(ctx context.Context, lock chan struct{}) error {
	select {
	case lock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("another configuration change is under way: %w; try again", ctx.Err())
	case <-d.running.Done():
		return errStopping
	}
	if d.running.Err() != nil {
		<-lock
		return errStopping
	}
	return nil
}

// Add adds an interface at run time, or replaces it. An error may also mean that it was added, but
// would be lost with a restart.
func (d *daemon) Add(ctx context.Context, definition []byte, namespace *os.File) (report.Reload, error) {
	return d.change(ctx, func(now *config.Config) (*config.Config, error) {
		d.passed = fleet.Namespace{Interface: nameIn(definition), File: namespace}
		return now.WithRuntime(definition)
	})
}

// Remove removes an interface that was added at run time.
func (d *daemon) Remove(ctx context.Context, name string) (report.Reload, error) {
	return d.change(ctx, func(now *config.Config) (*config.Config, error) {
		switch {
		case slices.ContainsFunc(now.Interfaces, func(f config.Interface) bool { return f.Name == name }):
			return now.Without(name)
		case d.fleet.Interface(name) != nil: // it had failed
			return now, nil
		}
		if _, ok := d.left[name]; ok { // it does not run, so its user deletes what is left of it
			delete(d.left, name)
			d.logForgetful(d.remember())
		}
		return nil, fmt.Errorf("%w: no interface %q", control.ErrNotFound, name)
	})
}

// change replaces the configuration by one that follows from it, and remembers the interfaces that
// were added at run time. An error means that nothing has changed, or that this was not remembered.
func (d *daemon) change(ctx context.Context, follow func(*config.Config) (*config.Config, error)) (report.Reload, error) {
	if err := d.enter(ctx, d.changing); err != nil {
		return report.Reload{}, err
	}
	defer func() {
		d.passed = fleet.Namespace{}
		<-d.changing
	}()
	result, err := d.apply(ctx, follow)
	if err == nil {
		err = d.remember()
	}
	return result, err
}

// apply carries out a change. It first forgets what was added at run time and has failed, such as the
// interface of a pod that has ended. d.changing is held, or the daemon does not serve yet.
func (d *daemon) apply(ctx context.Context, follow func(*config.Config) (*config.Config, error)) (report.Reload, error) {
	was, now := d.fleet.Works(d.cfg), *d.cfg
	now.Interfaces = slices.DeleteFunc(slices.Clone(now.Interfaces), func(f config.Interface) bool {
		return f.Runtime() && !slices.ContainsFunc(was.Interfaces, func(w config.Interface) bool { return w.Name == f.Name })
	})
	next, err := follow(&now)
	if err != nil {
		return report.Reload{}, &mistaken{err}
	}
	plan, err := config.MakePlan(was, next)
	if err == nil && d.opts.Admit != nil {
		err = d.opts.Admit(next)
	}
	if err != nil {
		return report.Reload{}, &mistaken{err}
	}
	made, err := d.fleet.Prepare(ctx, plan, was, next, d.passed)
	if err != nil {
		return report.Reload{}, errors.Join(err, made.Discard())
	}
	result := d.fleet.Commit(plan, made)
	d.cfg = next
	for _, list := range [][]report.Outcome{result.Devices, result.Interfaces} {
		for _, o := range list {
			if o.Change != string(config.Kept) {
				d.opts.Log.Info("configuration changed", "name", o.Name, "change", o.String())
				d.journal.Add(journal.Entry{Scope: o.Name, Kind: journal.KindNote, Text: o.String()})
			}
		}
	}
	d.opts.Log.Info("configuration applied")
	return result, nil
}
