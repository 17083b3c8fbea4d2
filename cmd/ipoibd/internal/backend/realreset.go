package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
)

// check returns an error if a device does not have the means of reset, before anything is lost.
func (k kernel) check(how config.Reset, d rdma.Device) error {
	switch {
	case how == config.ResetNone, how == config.ResetLink && d.Parent != "":
		return nil
	case how == config.ResetLink:
		return fmt.Errorf("reset %s works only for Soft-RoCE devices, and %s is not one; use none, driver or pci: %w",
			how, d.Name, hca.ErrInvalid)
	case d.PCIAddr == "":
		return fmt.Errorf("reset %s needs a PCI function, and %s has none; use none, or link for Soft-RoCE: %w",
			how, d.Name, hca.ErrInvalid)
	}
	f, err := k.function(d.PCIAddr)
	if err != nil {
		return err
	}
	defer f.Close()
	if how == config.ResetPCI && !f.CanReset() {
		return fmt.Errorf("reset %s: PCI function %s of %s cannot be reset alone; use driver: %w",
			how, d.PCIAddr, d.Name, hca.ErrInvalid)
	}
	if d.Parent != "" {
		_, err = onlyNetdev(d, f)
	}
	return err
}

// Reset implements HCA. It resets the device by the configured means. The kernel may not
// return before every process has closed the device. Once the reset has begun, Reset waits
// for its end even if ctx ends, so that no process opens the device earlier (R16). Errors:
// resetlock.ErrHeld.
func (h *realHCA) Reset(ctx context.Context) error {
	if h.cfg.Reset == config.ResetNone {
		return nil
	}
	d := h.found()
	if err := h.awaitRelease(ctx, d); err != nil {
		return h.overdue(d, err)
	}
	select {
	case h.busy <- struct{}{}:
	case <-ctx.Done():
		return h.overdue(d, ctx.Err())
	}
	defer func() { <-h.busy }()
	own, err := h.own() // another device may have taken its place while we waited
	if err != nil {
		return fmt.Errorf("reset %s: %w", h.cfg.Reset, err)
	}
	if held := h.foreign(); len(held) > 0 { // since the locks were taken
		return fmt.Errorf("%w: %s", resetlock.ErrHeld, strings.Join(held, ", "))
	}
	h.log.Warn("resetting the device in the kernel", "means", h.cfg.Reset, "used_by_others", h.usersOf(own))
	defer context.AfterFunc(ctx, func() { _ = h.overdue(own, ctx.Err()) })() // the log says it
	return h.kernel.reset(h.cfg.Reset, own, false, h.log)
}

// releaseEvery is the time between two checks whether this process has closed the device.
const releaseEvery = 50 * time.Millisecond

// awaitRelease waits until this process has closed a Soft-RoCE device. Otherwise its driver
// would wait for that: forever if a verb hangs, and if this process exited during the wait, the
// reset would be cut short. Drivers of hardware do not wait.
func (h *realHCA) awaitRelease(ctx context.Context, d rdma.Device) error {
	for d.Parent != "" && ctx.Err() == nil && h.isOurs(d) {
		select {
		case <-ctx.Done():
		case <-time.After(releaseEvery):
		}
	}
	return ctx.Err()
}

// Run implements HCA. At the end it waits for a reset under way: if that were cut short, a
// function might be left without its driver.
func (h *realHCA) Run(ctx context.Context) {
	<-ctx.Done()
	h.busy <- struct{}{}
	<-h.busy
}

// found returns the known device, as it was found last.
func (h *realHCA) found() rdma.Device {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// overdue returns and logs why a reset has not ended, with the users of the device.
func (h *realHCA) overdue(d rdma.Device, err error) error {
	text := h.usersOf(d)
	if h.isOurs(d) {
		text = "this process, in which a verb hangs, and " + text
	}
	err = fmt.Errorf("reset %s: %w; users of the device: %s", h.cfg.Reset, err, text)
	h.log.Error("the kernel has not reset the device yet", "err", err)
	return err
}

// Sharing implements HCA.
func (h *realHCA) Sharing() Sharing {
	s := Sharing{Dir: h.lockDir, Function: h.found().PCIAddr, Holders: h.foreign}
	if s.NoReset = h.cfg.Reset == config.ResetNone; !s.NoReset {
		s.Means = string(h.cfg.Reset)
	}
	return s
}

// foreign names the other processes that prevent a reset: those that have the device open,
// unless the configuration forces resets. If the processes cannot be listed, it assumes that
// there is one. Users in the kernel do not count: the kernel makes them release the device.
func (h *realHCA) foreign() []string {
	if h.cfg.Force {
		return nil
	}
	users, err := h.kernel.processes(h.found())
	if err == nil {
		return othersOf(users)
	}
	if _, absent := h.own(); errors.Is(absent, hca.ErrNoDevice) {
		return nil
	}
	return []string{"unknown processes: " + err.Error()}
}

// isOurs reports whether this process has the device open, or may have it open since it lacks
// the descriptors or the memory to list the processes.
func (h *realHCA) isOurs(d rdma.Device) bool {
	users, err := h.kernel.processes(d)
	return hca.Exhausted(err) || slices.ContainsFunc(users, isSelf)
}

// usersOf describes the other users of a device.
func (h *realHCA) usersOf(d rdma.Device) string {
	users, err := h.kernel.users(d)
	switch names := othersOf(users); {
	case len(names) > 0:
		return strings.Join(names, ", ")
	case err != nil:
		return "unknown users: " + err.Error()
	}
	return "no other process"
}

func isSelf(u rdma.User) bool { return u.PID == os.Getpid() }

// othersOf names the users that are not this process.
func othersOf(users []rdma.User) (names []string) {
	for _, u := range slices.DeleteFunc(users, isSelf) {
		names = append(names, u.String())
	}
	return names
}

// function is what a reset needs of an rdma.Function.
type function interface {
	Bound() bool
	CanReset() bool
	Rebind() error
	Reset() error
	Probe() error
	Netdevs() []string
	Close() error
}

// reset resets a device. If an earlier reset has removed the device and was cut short, reset
// only brings it back. Errors: resetlock.ErrUnfinished.
func (k kernel) reset(how config.Reset, d rdma.Device, gone bool, log *slog.Logger) error {
	if !gone {
		if err := k.check(how, d); err != nil {
			return err
		}
	}
	if how == config.ResetLink {
		if !gone {
			if err := k.delLink(d.Name); err != nil {
				return err
			}
		}
		return k.addAgain(d, d.Parent)
	}
	f, err := k.function(d.PCIAddr)
	if gone && err != nil && !errors.Is(err, hca.ErrNoDevice) {
		err = fmt.Errorf("%w; %w", err, resetlock.ErrUnfinished)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	act := f.Rebind
	switch {
	case gone:
		act = f.Probe
	case how == config.ResetPCI:
		act = f.Reset
	}
	var restore func()
	if !gone {
		restore = k.saveNetdevs(f, log)
	}
	err = act()
	if restore != nil && !errors.Is(err, rdma.ErrUnbound) {
		restore()
	}
	if errors.Is(err, rdma.ErrUnbound) {
		err = fmt.Errorf("%w; %w", err, resetlock.ErrUnfinished)
	}
	if err != nil || d.Parent == "" {
		return err
	}
	netdev, err := onlyNetdev(d, f) // that came in the place of the one before
	if err != nil {
		return fmt.Errorf("%w; %w", err, resetlock.ErrUnfinished)
	}
	return k.addAgain(d, netdev)
}

// saveNetdevs saves the configuration of a function's netdevs, which a reset creates again, and
// returns the function that restores it. A netdev that cannot be restored is logged, since the
// device itself was reset.
func (k kernel) saveNetdevs(f function, log *slog.Logger) (restore func()) {
	saved := map[string]func() error{}
	for _, name := range f.Netdevs() {
		again, err := k.save(name)
		if err != nil {
			log.Warn("cannot save the addresses and routes of a netdev that the reset recreates; "+
				"configure it afterwards", "netdev", name, "err", err)
			continue
		}
		saved[name] = again
	}
	return func() {
		for name, again := range saved {
			if err := again(); err != nil {
				log.Error("cannot restore the addresses and routes of a netdev that the reset recreated; "+
					"configure it", "netdev", name, "err", err)
			}
		}
	}
}

// onlyNetdev returns the netdev of a function. If there are several, it is unknown which of
// them a device was on, once it is gone.
func onlyNetdev(d rdma.Device, f function) (string, error) {
	netdevs := f.Netdevs()
	if len(netdevs) != 1 {
		return "", fmt.Errorf("%s could not be added again: its PCI function has %d netdevs instead of one: %w",
			d.Name, len(netdevs), hca.ErrInvalid)
	}
	return netdevs[0], nil
}

// addAgain adds a Soft-RoCE device that was deleted. Its error is resetlock.ErrUnfinished, and
// says how to add the device by hand.
func (k kernel) addAgain(d rdma.Device, netdev string) error {
	if err := k.addLink(d.Name, netdev); err != nil {
		return fmt.Errorf("%w; %w: rdma link add %s type rxe netdev %s", err, resetlock.ErrUnfinished, d.Name, netdev)
	}
	return nil
}
