package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/qprecovery/reset"
)

// lockDir returns the directory of the locks by which daemons share a device. A daemon that
// may not write to the default directory acts alone. An error of a configured directory is
// reported by the first opening.
func lockDir(cfg config.Device, log *slog.Logger) string {
	dir := cfg.Coordinator
	if dir == "" {
		return ""
	}
	err := resetlock.MakeDir(dir)
	if err == nil {
		err = unix.Access(dir, unix.W_OK)
	}
	if err != nil && dir == config.DefaultCoordinator {
		log.Warn("resets of the device are not coordinated with other daemons; "+
			"set coordinator to a directory that this daemon may write, or to \"\"",
			"directory", dir, "err", err)
		return ""
	}
	if resetlock.OnDisk(dir) {
		log.Warn("the directory of the reset locks is not on tmpfs, so a reset may have to wait for a disk",
			"directory", dir)
	}
	return dir
}

// completeLimit is how long the start waits for other processes before it completes a reset
// that was cut short. A daemon that shares the device completes it after its grace period.
const completeLimit = 5 * time.Second

// completeCutShort completes the reset of a device that is absent because a daemon was
// killed while it reset it (R21). The record of the reset is untrusted: its name and means
// must be those that are configured. It waits for other processes, but no longer than ctx.
func (h *realHCA) completeCutShort(ctx context.Context) error {
	if h.lockDir == "" || h.cfg.Reset == config.ResetNone {
		return nil
	}
	configured := func(d reset.Device) bool { return d.Name == h.cfg.HCA && d.Means == string(h.cfg.Reset) }
	return resetlock.Complete(ctx, h.lockDir, completeLimit, configured, func(d reset.Device) error {
		h.log.Warn("completing a reset of the device that was cut short",
			"name", d.Name, "netdev", d.Parent, "pci", d.PCIAddr)
		return h.kernel.reset(h.cfg.Reset, rdma.Device{Name: d.Name, Parent: d.Parent, PCIAddr: d.PCIAddr}, true, h.log)
	}, h.log)
}

// Complete implements HCA: it brings the device back if it is gone, and resets it if not.
func (h *realHCA) Complete(ctx context.Context) error {
	if _, err := h.own(); !errors.Is(err, hca.ErrNoDevice) {
		return h.Reset(ctx)
	}
	return h.kernel.reset(h.cfg.Reset, h.found(), true, h.log)
}

// cutShort adds to the error of an absent device what an operator can do if a daemon was
// killed during a reset and left no record. It only suggests, since a PCI function may have
// no driver on purpose.
func cutShort(err error, cfg config.Device, driverless func() []string) error {
	if !errors.Is(err, hca.ErrNoDevice) {
		return err
	}
	switch cfg.Reset { //nolint:exhaustive // the others leave nothing half done
	case config.ResetLink:
		return fmt.Errorf("%w; if a reset was cut short, add the device again: "+
			"rdma link add %s type rxe netdev NETDEV", err, cfg.HCA)
	case config.ResetDriver, config.ResetPCI:
		if found := driverless(); len(found) > 0 {
			return fmt.Errorf("%w; if a reset was cut short, bind the function to its driver again: "+
				"echo ADDRESS > /sys/bus/pci/drivers_probe; functions without a driver: %s",
				err, strings.Join(found, ", "))
		}
	}
	return err
}
