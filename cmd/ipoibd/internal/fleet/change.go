package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/report"
)

// ChangeLimit bounds a commit. What has not ended by then ends in the background. (A device abandons a verb that
// hangs much earlier.)
const ChangeLimit = 8 * time.Second

// ErrStopping means that the daemon stops before a change has ended.
var ErrStopping = errors.New("the daemon is stopping")

var errLingers = fmt.Errorf("it has not ended within %s; it will end in the background", ChangeLimit)

// Made are devices and interfaces that do not run yet.
type Made struct {
	devices map[string]*Device
	ifaces  map[string]*Interface
	cfg     *config.Config // that they belong to
	in      Namespace
	asleep  bool     // the devices begin suspended
	wereUp  []string // interfaces that were up in the process that handed them over
}

// Discard undoes what was made. Only interfaces that existed before remain.
func (m Made) Discard() error { return m.close(false) }

// Close closes everything that was inherited, without an effect on what the other process continues.
func (m Made) Close() error { return m.close(true) }

func (m Made) close(keep bool) (err error) {
	for _, i := range m.ifaces {
		err = errors.Join(err, i.release(keep || i.iface.Adopted()))
	}
	for _, d := range m.devices {
		err = errors.Join(err, d.Slot.Close())
	}
	return err
}

// Prepare makes what a plan adds, devices for those that it rebuilds, and interfaces for those that get another
// place, and changes nothing else. in is the namespace of a new interface. After an error, what was made must be
// discarded.
func (f *Fleet) Prepare(ctx context.Context, p config.Plan, was, is *config.Config, in Namespace) (m Made, err error) {
	m = Made{devices: map[string]*Device{}, ifaces: map[string]*Interface{}, cfg: is, in: in}
	for _, s := range p.Devices {
		if ctx.Err() != nil {
			return m, context.Cause(ctx)
		}
		if s.Change != config.Added && s.Change != config.Rebuilt {
			continue
		}
		// What this daemon has open itself cannot be probed.
		probe := !slices.ContainsFunc(was.Devices, func(c config.Device) bool { return c.Claims(&s.Is) })
		d, err := f.makeDevice(ctx, s.Is, is.Interfaces, probe)
		if err != nil {
			return m, fmt.Errorf("device %s: %w", s.Name, err)
		}
		m.devices[s.Name] = d
	}
	for _, s := range p.Interfaces {
		if ctx.Err() != nil {
			return m, context.Cause(ctx)
		}
		if err := f.prepareInterface(s, m); err != nil {
			return m, fmt.Errorf("interface %s: %w", s.Name, err)
		}
	}
	return m, nil
}

// prepareInterface makes an interface that is new, or gets another place. One whose number of lanes changes is closed
// before the next one is opened, so that this is checked first.
func (f *Fleet) prepareInterface(s config.Step[config.Interface], m Made) error {
	d := m.on(f, s.Is)
	switch was := f.Interface(s.Name); {
	case s.Change == config.Added, s.Change == config.Rebuilt && moves(s):
		i, err := f.makeInterface(s.Is, d, m)
		if err != nil {
			return err
		}
		m.ifaces[s.Name] = i
	case s.Change == config.Rebuilt && was.device.lanes != d.lanes:
		if was.iface.Elsewhere() {
			return errors.New("the number of its lanes cannot change while it has another name or is " +
				"in another network namespace; move it back, or keep the number")
		}
		return iface.Taken(s.Is)
	}
	return nil
}

// on returns the device of an interface, a new one if there is one.
func (m Made) on(f *Fleet, c config.Interface) *Device {
	if d := m.devices[c.Device]; d != nil {
		return d
	}
	return f.Device(c.Device)
}

// Commit carries out a plan with what was made for it. What it cannot do, the result says; it does
// the rest nevertheless.
func (f *Fleet) Commit(p config.Plan, m Made) report.Reload {
	ctx, cancel := context.WithTimeout(f.running, ChangeLimit)
	defer cancel()
	ifaceErrs := f.endInterfaces(ctx, p.Interfaces)
	deviceErrs := f.endDevices(ctx, p.Devices)
	f.replaceDevices(p.Devices, m)
	f.replaceInterfaces(p.Interfaces, m, ifaceErrs)
	f.changeInterfaces(ctx, p.Interfaces, ifaceErrs)
	return report.Reload{Devices: outcomes(p.Devices, deviceErrs), Interfaces: outcomes(p.Interfaces, ifaceErrs)}
}

// endInterfaces ends the interfaces that go, and deletes those that do not come back.
func (f *Fleet) endInterfaces(ctx context.Context, steps []config.Step[config.Interface]) map[string]error {
	ends := map[string]<-chan error{}
	for _, s := range steps {
		switch i := f.Interface(s.Name); s.Change {
		case config.Removed:
			i.removed.Store(true)
			ends[s.Name] = f.leaving.end(i.run, func() error { return f.delete(i) })
		case config.Rebuilt:
			ends[s.Name] = f.leaving.end(i.run, func() error { return nil })
		case config.Added, config.Changed, config.Kept:
		}
	}
	return f.leaving.await(ctx, ends)
}

// delete deletes an interface whose Run has ended. One that failed since the plan was made, such as by the
// end of its container, is closed already.
func (f *Fleet) delete(i *Interface) error {
	f.mu.Lock()
	failed := i.failure != nil
	f.mu.Unlock()
	if failed {
		return nil
	}
	return i.iface.Delete()
}

// endDevices ends the devices that go.
func (f *Fleet) endDevices(ctx context.Context, steps []config.Step[config.Device]) map[string]error {
	ends := map[string]<-chan error{}
	for _, s := range steps {
		if s.Change == config.Removed || s.Change == config.Rebuilt {
			d := f.Device(s.Name)
			d.removed.Store(s.Change == config.Removed)
			ends[s.Name] = f.leaving.end(d.run, func() error { return nil })
		}
	}
	return f.leaving.await(ctx, ends)
}

// leaving are routines that are ended, perhaps in the background.
type leaving struct{ sync.WaitGroup }

// end ends a routine and calls last, on a goroutine. The channel gets the error of last.
func (l *leaving) end(r routine, last func() error) <-chan error {
	ended := make(chan error, 1)
	l.Go(func() {
		r.stop()
		<-r.ended
		ended <- last()
	})
	return ended
}

// await waits until ctx ends, and returns the errors by name.
func (l *leaving) await(ctx context.Context, ends map[string]<-chan error) map[string]error {
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
			if errs[name] = errLingers; !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				errs[name] = ErrStopping
			}
		}
	}
	return errs
}

// replaceDevices changes the list of devices and those devices that change live, and starts new ones.
func (f *Fleet) replaceDevices(steps []config.Step[config.Device], m Made) {
	var devices []*Device
	for _, s := range steps {
		d := f.Device(s.Name)
		switch s.Change {
		case config.Added, config.Rebuilt:
			d = m.devices[s.Name]
		case config.Changed:
			d.Slot.Change(s.Is)
		case config.Kept:
		case config.Removed:
			continue
		}
		devices = append(devices, d)
	}
	f.mu.Lock()
	f.devices, f.asleep = devices, f.asleep || m.asleep
	asleep := f.asleep
	f.mu.Unlock()
	for _, d := range m.devices {
		if asleep { // a later order to resume waits for Run
			d.BeginSuspended()
		}
		d.begin()
	}
}

// replaceInterfaces changes the list of interfaces and starts new ones. An interface that cannot be
// rebuilt stays in the list as failed; errs has why.
func (f *Fleet) replaceInterfaces(steps []config.Step[config.Interface], m Made, errs map[string]error) {
	var ifaces, fresh, lost []*Interface
	for _, s := range steps {
		i := f.Interface(s.Name)
		switch s.Change {
		case config.Added:
			i = m.ifaces[s.Name]
			fresh = append(fresh, i)
		case config.Rebuilt:
			if errs[s.Name] != nil { // it lingers
				f.leaving.end(i.run, i.iface.Close)
				if moved := m.ifaces[s.Name]; moved != nil {
					errs[s.Name] = errors.Join(errs[s.Name], moved.release(false))
				}
				lost = append(lost, i)
				break
			}
			next, err := f.rebuild(i, s, f.Device(s.Is.Device), m)
			if err != nil {
				errs[s.Name] = err
				lost = append(lost, i)
				break
			}
			i = next
			fresh = append(fresh, i)
		case config.Kept, config.Changed:
		case config.Removed:
			continue
		}
		ifaces = append(ifaces, i)
	}
	f.mu.Lock()
	f.ifaces = ifaces
	for _, i := range ifaces {
		i.runtime = m.cfg.Runtime(i.Name())
	}
	f.mu.Unlock()
	for _, i := range fresh {
		f.begin(i)
	}
	for _, i := range lost {
		f.opts.Log.Error("interface cannot be rebuilt", "interface", i.Name(), "err", errs[i.Name()])
		f.failed(i, errs[i.Name()])
	}
}

// changeInterfaces changes interfaces live, all at the same time.
func (f *Fleet) changeInterfaces(ctx context.Context, steps []config.Step[config.Interface], errs map[string]error) {
	var all sync.WaitGroup
	results := make([]error, len(steps))
	for n, s := range steps {
		if s.Change == config.Changed {
			i := f.Interface(s.Name)
			all.Go(func() { results[n] = i.iface.Change(ctx, s.Is) })
		}
	}
	all.Wait()
	for n, s := range steps {
		errs[s.Name] = cmp.Or(errs[s.Name], results[n])
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
