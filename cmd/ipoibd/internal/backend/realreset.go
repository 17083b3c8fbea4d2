package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
)

// check finds a means of reset that a device has not.
func (k kernel) check(how config.Reset, d rdma.Device) error {
	switch {
	case how == config.ResetNone, how == config.ResetLink && d.Parent != "":
		return nil
	case how == config.ResetLink:
		return fmt.Errorf("reset %s is for Soft-RoCE, and %s is none: %w", how, d.Name, hca.ErrInvalid)
	case d.PCIAddr == "":
		return fmt.Errorf("reset %s needs a PCI function, and %s has none: %w", how, d.Name, hca.ErrInvalid)
	}
	f, err := k.function(d.PCIAddr)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkFunction(how, d, f)
}

// Reset implements HCA. It does what is configured. The kernel may not return before
// every process has closed the device. Once the reset has begun, Reset waits for its end
// even if ctx ends, so that no process opens the device meanwhile (R16).
func (h *realHCA) Reset(ctx context.Context) error {
	if h.cfg.Reset == config.ResetNone {
		return nil
	}
	d := h.found()
	h.log.Warn("resetting the device", "means", h.cfg.Reset, "used_by_others", h.others(d))
	if err := h.awaitRelease(ctx, d); err != nil {
		return h.overdue(d, err)
	}
	select {
	case h.busy <- struct{}{}:
	case <-ctx.Done():
		return h.overdue(d, ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-h.busy }()
		done <- h.resetOwn()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	_ = h.overdue(d, ctx.Err()) // the log says it
	return <-done
}

// resetOwn resets what is known, however long it took to get here, and nothing else.
func (h *realHCA) resetOwn() error {
	d, err := h.own()
	if err != nil {
		return fmt.Errorf("reset %s: %w", h.cfg.Reset, err)
	}
	return h.kernel.reset(h.cfg.Reset, d)
}

// releaseEvery is how often it is looked whether this process has let go.
const releaseEvery = 50 * time.Millisecond

// awaitRelease waits until this process has closed a Soft-RoCE device, whose driver
// would wait for that: with a verb that hangs for ever, and if this process ended
// meanwhile, nobody would finish the reset. Drivers of hardware do not wait.
func (h *realHCA) awaitRelease(ctx context.Context, d rdma.Device) error {
	for d.Parent != "" && h.holds(d) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(releaseEvery):
		}
	}
	return ctx.Err()
}

// holds reports whether this process has the device open, or may have it open because
// /proc could not be read completely. Other errors concern only the kernel's users.
func (h *realHCA) holds(d rdma.Device) bool {
	users, err := h.kernel.users(d)
	return errors.Is(err, hca.ErrNoMemory) || slices.ContainsFunc(users, isSelf)
}

func isSelf(u rdma.User) bool { return u.PID == os.Getpid() }

// Run implements HCA. It waits at the end for a reset under way: half of one may leave a function
// without its driver.
func (h *realHCA) Run(ctx context.Context) {
	<-ctx.Done()
	h.busy <- struct{}{}
	<-h.busy
}

// found is the device that is known, as it was found last.
func (h *realHCA) found() rdma.Device {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// overdue is why a reset has not ended: those who have the device open.
func (h *realHCA) overdue(d rdma.Device, err error) error {
	holders := h.others(d)
	if h.holds(d) {
		holders = "this process, in which a verb hangs, and " + holders
	}
	err = fmt.Errorf("reset %s: %w; the device is held by %s", h.cfg.Reset, err, holders)
	h.log.Error("the kernel has not reset the device yet", "err", err)
	return err
}

// Sharing implements HCA.
func (h *realHCA) Sharing() Sharing {
	s := Sharing{
		Dir:     lockDir(h.cfg, h.log),
		Holders: func() []string { names, _ := h.users(h.found()); return names },
	}
	if h.cfg.Reset != config.ResetNone {
		s.Means = string(h.cfg.Reset)
	}
	return s
}

// users names the other processes that use the device, as far as they can be seen.
func (h *realHCA) users(d rdma.Device) (names []string, err error) {
	users, err := h.kernel.users(d)
	for _, u := range slices.DeleteFunc(users, isSelf) {
		names = append(names, u.String())
	}
	return names, err
}

// others is users in words.
func (h *realHCA) others(d rdma.Device) string {
	names, err := h.users(d)
	switch {
	case len(names) > 0:
		return strings.Join(names, ", ")
	case err != nil:
		return "it is not known whom: " + err.Error()
	}
	return "nobody that can be seen from here"
}

// resetDevice resets a device. One of Soft-RoCE does not come back by itself.
func resetDevice(how config.Reset, d rdma.Device) error {
	if how == config.ResetLink {
		if err := rdma.DelLink(d.Name); err != nil {
			return err
		}
		return addAgain(d, d.Parent)
	}
	f, err := openFunction(d.PCIAddr)
	if err != nil {
		return err
	}
	defer f.Close()
	return resetFunction(how, d, f)
}

// function is what a reset needs of an rdma.Function.
type function interface {
	CanReset() bool
	Rebind() error
	Reset() error
	Probe() error
	Netdevs() []string
	Close() error
}

func openFunction(addr string) (function, error) { return rdma.OpenFunction(addr) }

// checkFunction finds what a function cannot do, while nothing is lost yet.
func checkFunction(how config.Reset, d rdma.Device, f function) error {
	if how == config.ResetPCI && !f.CanReset() {
		return fmt.Errorf("reset %s: PCI function %s of %s cannot be reset alone: %w", how, d.PCIAddr, d.Name, hca.ErrInvalid)
	}
	if d.Parent == "" {
		return nil
	}
	_, err := onlyNetdev(d, f)
	return err
}

// resetFunction makes a Soft-RoCE device anew on the netdev that came in the place
// of the one before.
func resetFunction(how config.Reset, d rdma.Device, f function) error {
	if err := checkFunction(how, d, f); err != nil {
		return err
	}
	act := f.Rebind
	if how == config.ResetPCI {
		act = f.Reset
	}
	if err := act(); err != nil || d.Parent == "" {
		return err
	}
	netdev, err := onlyNetdev(d, f)
	if err != nil {
		return err
	}
	return addAgain(d, netdev)
}

// onlyNetdev is the netdev of a function: of several it is not known which one a
// device was on, once it is gone.
func onlyNetdev(d rdma.Device, f function) (string, error) {
	netdevs := f.Netdevs()
	if len(netdevs) != 1 {
		return "", fmt.Errorf("%s could not be added again: its PCI function has %d netdevs, and not one: %w", d.Name, len(netdevs), hca.ErrInvalid)
	}
	return netdevs[0], nil
}

// addAgain adds a Soft-RoCE device that was deleted. An error says how to go on by
// hand.
func addAgain(d rdma.Device, netdev string) error {
	if err := rdma.AddLink(d.Name, netdev); err != nil {
		return fmt.Errorf("%w; it is gone now: rdma link add %s type rxe netdev %s", err, d.Name, netdev)
	}
	return nil
}
