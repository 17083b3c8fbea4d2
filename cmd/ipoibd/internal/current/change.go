package current

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

var errNoFile = errors.New("this daemon runs without a configuration file (--config), so there is nothing to reload; " +
	"restart it to change its flags")

// mistaken is an error that is control.ErrMistake as well.
type mistaken struct{ error }

// Unwrap makes errors.Is find both.
func (m *mistaken) Unwrap() []error { return []error{control.ErrMistake, m.error} }

// Reload applies the configuration file. If it returns an error, nothing has changed. Otherwise
// the result says what was done, and what of that has failed. Reloads wait for each other.
func (c *Current) Reload(ctx context.Context) (report.Reload, error) {
	if c.opts.Load == nil {
		return report.Reload{}, errNoFile
	}
	if err := c.enter(ctx, c.loading); err != nil {
		return report.Reload{}, err
	}
	type loaded struct {
		cfg *config.Config
		err error
	}
	file := make(chan loaded, 1)
	go func() {
		cfg, err := c.opts.Load()
		file <- loaded{cfg, err}
	}()
	select {
	case got := <-file:
		defer func() { <-c.loading }()
		if got.err != nil {
			return report.Reload{}, &mistaken{got.err}
		}
		return c.change(ctx, got.cfg.WithRuntimeOf)
	case <-ctx.Done():
	case <-c.running.Done():
	}
	// The file system hangs. That delays later reloads, but neither this one nor a stop.
	go func() {
		<-file
		<-c.loading
	}()
	return report.Reload{}, fmt.Errorf("read configuration: %w", cmp.Or(ctx.Err(), ErrStopping))
}

// enter takes a lock, unless ctx ends or the daemon stops before.
func (c *Current) enter(ctx context.Context, lock chan struct{}) error {
	select {
	case lock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("another configuration change is under way: %w; try again", ctx.Err())
	case <-c.running.Done():
		return ErrStopping
	}
	if c.running.Err() != nil {
		<-lock
		return ErrStopping
	}
	return nil
}

// Run applies this process's own configuration after a hand-over, and then reloads the file after each hangup, until the
// daemon stops. It logs what it cannot apply.
func (c *Current) Run(hangups <-chan os.Signal) {
	if c.own != nil {
		result, err := c.change(c.running, c.own.WithRuntimeOf)
		if err = errors.Join(err, result.Err()); err != nil && c.running.Err() == nil {
			c.opts.Log.Error("part of the configuration could not be applied; keeping the previous daemon's settings "+
				"for it; fix the configuration and reload it", "err", err)
		}
	}
	for {
		select {
		case <-c.running.Done():
			return
		case <-hangups:
		}
		result, err := c.Reload(c.running)
		text := "configuration reloaded, but not completely"
		if err != nil {
			text = "configuration not reloaded; the old one stays in effect"
		} else {
			err = result.Err()
		}
		if err == nil || c.running.Err() != nil {
			continue
		}
		for line := range strings.Lines(err.Error()) {
			c.opts.Log.Error(text, "err", strings.TrimSpace(line))
		}
	}
}

// Add adds an interface at run time, or replaces it. An error may also mean that it was added, but
// would be lost with a restart.
func (c *Current) Add(ctx context.Context, definition []byte, namespace *os.File) (report.Reload, error) {
	return c.change(ctx, func(now *config.Config) (*config.Config, error) {
		c.passed = fleet.Namespace{Interface: ask(definition).Name, File: namespace}
		return now.WithRuntime(definition)
	})
}

// Remove removes an interface that was added at run time.
func (c *Current) Remove(ctx context.Context, name string) (report.Reload, error) {
	return c.change(ctx, func(now *config.Config) (*config.Config, error) {
		switch {
		case slices.ContainsFunc(now.Interfaces, func(f config.Interface) bool { return f.Name == name }):
			return now.Without(name)
		case c.opts.Fleet.Interface(name) != nil: // it had failed
			return now, nil
		}
		if _, ok := c.left[name]; ok { // it does not run, so its user deletes what is left of it
			delete(c.left, name)
			c.logSaveError(c.remember())
		}
		return nil, fmt.Errorf("%w: no interface %q", control.ErrNotFound, name)
	})
}

// follow returns the configuration that follows from another one.
type follow func(*config.Config) (*config.Config, error)

// change replaces the configuration by one that follows from it, and remembers the interfaces that
// were added at run time. An error means that nothing has changed, or that this was not remembered.
func (c *Current) change(ctx context.Context, follow follow) (report.Reload, error) {
	if err := c.enter(ctx, c.changing); err != nil {
		return report.Reload{}, err
	}
	defer func() {
		c.passed = fleet.Namespace{}
		<-c.changing
	}()
	result, err := c.apply(ctx, follow)
	if err == nil {
		err = c.remember()
	}
	return result, err
}

// apply carries out a change. It first forgets what was added at run time and has failed, such as the
// interface of a pod that has ended. c.changing is held, or the daemon does not serve yet.
func (c *Current) apply(ctx context.Context, follow follow) (report.Reload, error) {
	was, now := c.opts.Fleet.Works(c.cfg), c.cfg
	for _, f := range c.cfg.Interfaces {
		works := slices.ContainsFunc(was.Interfaces, func(w config.Interface) bool { return w.Name == f.Name })
		if c.cfg.Runtime(f.Name) && !works {
			now, _ = now.Without(f.Name)
		}
	}
	next, err := follow(now)
	if err != nil {
		return report.Reload{}, &mistaken{err}
	}
	plan, err := config.MakePlan(was, next)
	if err == nil && c.opts.Admit != nil {
		err = c.opts.Admit(next)
	}
	if err != nil {
		return report.Reload{}, &mistaken{err}
	}
	made, err := c.opts.Fleet.Prepare(ctx, plan, was, next, c.passed)
	if err != nil {
		return report.Reload{}, errors.Join(err, made.Discard())
	}
	result := c.opts.Fleet.Commit(plan, made)
	c.cfg = next
	for _, list := range [][]report.Outcome{result.Devices, result.Interfaces} {
		for _, o := range list {
			if o.Change != string(config.Kept) {
				c.opts.Log.Info("configuration changed", "name", o.Name, "change", o.String())
				c.opts.Journal.Add(journal.Entry{Scope: o.Name, Kind: journal.KindNote, Text: o.String()})
			}
		}
	}
	c.opts.Log.Info("configuration applied")
	return result, nil
}
