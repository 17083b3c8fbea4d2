package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// changeLimit bounds the second half of a change. What has not ended by then ends in the
// background. (A device abandons a verb that hangs much earlier.)
const changeLimit = stopLimit

var (
	errStopping = fmt.Errorf("%w: the daemon is stopping", control.ErrUnavailable)
	errLingers  = fmt.Errorf("it has not ended within %s; it will end in the background", changeLimit)
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
		d.passed = passed{nameIn(definition), namespace}
		return now.WithRuntime(definition)
	})
}

// passed is the network namespace that the request to add an interface carried.
type passed struct {
	name      string   // of the interface
	namespace *os.File // nil: none
}

// Remove removes an interface that was added at run time.
func (d *daemon) Remove(ctx context.Context, name string) (report.Reload, error) {
	return d.change(ctx, func(now *config.Config) (*config.Config, error) {
		switch {
		case slices.ContainsFunc(now.Interfaces, func(f config.Interface) bool { return f.Name == name }):
			return now.Without(name)
		case d.iface(name) != nil: // it had failed
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
		d.passed = passed{}
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
	was, now := d.works(), *d.cfg
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
	made, err := d.prepare(ctx, plan, was, next)
	if err != nil {
		return report.Reload{}, errors.Join(err, made.discard())
	}
	result := d.commit(plan, made)
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

// works returns the configuration without the interfaces that have failed, so that a change makes
// those again. d.changing is held.
func (d *daemon) works() *config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := *d.cfg
	c.Interfaces = nil
	for i, m := range d.ifaces { // in the order of d.cfg
		if m.failure == nil {
			c.Interfaces = append(c.Interfaces, d.cfg.Interfaces[i])
		}
	}
	return &c
}

// commit carries out a plan with what was made for it. What it cannot do, the result says; it does
// the rest nevertheless. d.changing is held, or nothing runs yet.
func (d *daemon) commit(p config.Plan, m made) report.Reload {
	ctx, cancel := context.WithTimeout(d.running, changeLimit)
	defer cancel()
	ifaceErrs := d.endInterfaces(ctx, p.Interfaces)
	deviceErrs := d.endDevices(ctx, p.Devices)
	d.replaceDevices(p.Devices, m)
	d.replaceInterfaces(p.Interfaces, m, ifaceErrs)
	d.changeInterfaces(ctx, p.Interfaces, ifaceErrs)
	return report.Reload{Devices: outcomes(p.Devices, deviceErrs), Interfaces: outcomes(p.Interfaces, ifaceErrs)}
}

// endInterfaces ends the interfaces that go, and deletes those that do not come back.
func (d *daemon) endInterfaces(ctx context.Context, steps []config.Step[config.Interface]) map[string]error {
	ends := map[string]<-chan error{}
	for _, s := range steps {
		switch f := d.iface(s.Name); s.Change {
		case config.Removed:
			ends[s.Name] = d.leave(f.run, func() error { return d.delete(f) })
		case config.Rebuilt:
			ends[s.Name] = d.leave(f.run, func() error { return nil })
		case config.Added, config.Changed, config.Kept:
		}
	}
	return d.await(ctx, ends)
}

// delete deletes an interface whose Run has ended. One that failed since the plan was made, such as by the
// end of its container, is closed already.
func (d *daemon) delete(f *member) error {
	d.mu.Lock()
	failed := f.failure != nil
	d.mu.Unlock()
	if failed {
		return nil
	}
	return f.Delete()
}

// endDevices ends the devices that go.
func (d *daemon) endDevices(ctx context.Context, steps []config.Step[config.Device]) map[string]error {
	ends := map[string]<-chan error{}
	for _, s := range steps {
		if s.Change == config.Removed || s.Change == config.Rebuilt {
			ends[s.Name] = d.leave(d.device(s.Name).run, func() error { return nil })
		}
	}
	return d.await(ctx, ends)
}

// leave ends a routine and calls last, on a goroutine that a stop waits for. The channel gets the
// error of last.
func (d *daemon) leave(r routine, last func() error) <-chan error {
	ended := make(chan error, 1)
	d.leaving.Go(func() {
		r.stop()
		<-r.ended
		ended <- last()
	})
	return ended
}

// await waits until ctx ends, and returns the errors by name.
func (d *daemon) await(ctx context.Context, ends map[string]<-chan error) map[string]error {
	errs := map[string]error{}
	for name, ended := range ends {
		select {
		case errs[name] = <-ended:
			continue
		case <-ctx.Done():
		}
		select {
		case errs[name] = <-ended:
		default:
			if errs[name] = errLingers; d.running.Err() != nil {
				errs[name] = errStopping
			}
		}
	}
	return errs
}

// replaceDevices changes the list of devices and those devices that change live, and starts new ones.
func (d *daemon) replaceDevices(steps []config.Step[config.Device], m made) {
	var devices []*managed
	for _, s := range steps {
		dev := d.device(s.Name)
		switch s.Change {
		case config.Added, config.Rebuilt:
			dev = m.devices[s.Name]
		case config.Changed:
			dev.slot.Change(s.Is)
		case config.Kept:
		case config.Removed:
			continue
		}
		devices = append(devices, dev)
	}
	d.mu.Lock()
	d.devices = devices
	asleep := d.asleep
	d.mu.Unlock()
	for _, dev := range m.devices {
		if asleep { // a later order to resume waits for Run
			dev.BeginSuspended()
		}
		dev.begin()
	}
}

// replaceInterfaces changes the list of interfaces and starts new ones. An interface that cannot be
// rebuilt stays in the list as failed; errs has why.
func (d *daemon) replaceInterfaces(steps []config.Step[config.Interface], m made, errs map[string]error) {
	var ifaces, fresh, lost []*member
	for _, s := range steps {
		f := d.iface(s.Name)
		switch s.Change {
		case config.Added:
			f = m.ifaces[s.Name]
			fresh = append(fresh, f)
		case config.Rebuilt:
			if errs[s.Name] != nil { // it lingers
				d.leave(f.run, f.Close)
				lost = append(lost, f)
				break
			}
			next, err := d.rebuild(f, s, d.device(s.Is.Device))
			if err != nil {
				errs[s.Name] = err
				lost = append(lost, f)
				break
			}
			f = next
			fresh = append(fresh, f)
		case config.Kept, config.Changed:
		case config.Removed:
			continue
		}
		ifaces = append(ifaces, f)
	}
	d.mu.Lock()
	d.ifaces = ifaces
	for i, f := range ifaces { // the steps of those that are removed come last
		f.runtime = steps[i].Is.Runtime()
	}
	d.mu.Unlock()
	for _, f := range fresh {
		d.begin(f)
	}
	for _, f := range lost {
		d.opts.Log.Error("interface cannot be rebuilt", "interface", f.Name(), "err", errs[f.Name()])
		d.failed(f, errs[f.Name()])
	}
}

// changeInterfaces changes interfaces live, all at the same time.
func (d *daemon) changeInterfaces(ctx context.Context, steps []config.Step[config.Interface], errs map[string]error) {
	var all sync.WaitGroup
	results := make([]error, len(steps))
	for i, s := range steps {
		if s.Change == config.Changed {
			f := d.iface(s.Name)
			all.Go(func() { results[i] = f.Change(ctx, s.Is) })
		}
	}
	all.Wait()
	for i, s := range steps {
		errs[s.Name] = cmp.Or(errs[s.Name], results[i])
	}
}

// outcomes returns what was done with devices or interfaces.
func outcomes[T config.Device | config.Interface](steps []config.Step[T], errs map[string]error) []report.Outcome {
	out := []report.Outcome{}
	for _, s := range steps {
		o := report.Outcome{Name: s.Name, Change: string(s.Change), Fields: append([]string{}, s.Fields...)}
		if err := errs[s.Name]; err != nil {
			o.Error = err.Error()
		}
		out = append(out, o)
	}
	return out
}
