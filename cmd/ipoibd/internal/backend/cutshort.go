package backend

import (
	"errors"
	"fmt"
	"strings"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
)

// cutShort says, where a device is not there, what to do if that is because this
// daemon was killed while it reset it. It does nothing itself: a function without a
// driver may be meant to have none.
func cutShort(err error, cfg config.Device, driverless func() []string) error {
	if !errors.Is(err, hca.ErrNoDevice) {
		return err
	}
	switch cfg.Reset { //nolint:exhaustive // of the others nothing is left behind
	case config.ResetLink:
		return fmt.Errorf("%w; if a reset was cut short: rdma link add %s type rxe netdev NETDEV", err, cfg.HCA)
	case config.ResetDriver, config.ResetPCI:
		if found := driverless(); len(found) > 0 {
			return fmt.Errorf("%w; if a reset was cut short: echo ADDRESS > /sys/bus/pci/drivers_probe, for which %s may be meant", err, strings.Join(found, ", "))
		}
	}
	return err
}
