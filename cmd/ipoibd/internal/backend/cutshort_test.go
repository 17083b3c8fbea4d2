package backend

import (
	"errors"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
)

func TestCutShort(t *testing.T) {
	for _, c := range []struct {
		reset config.Reset
		err   error
		found []string
		want  string // what is added
	}{
		{config.ResetNone, hca.ErrNoDevice, []string{"0000:03:00.0"}, ""},
		{config.ResetLink, hca.ErrNoDevice, nil, "; if a reset was cut short: rdma link add rxe0 type rxe netdev NETDEV"},
		{config.ResetDriver, hca.ErrNoDevice, []string{"0000:03:00.0", "0000:03:00.1"}, "; if a reset was cut short: echo ADDRESS > /sys/bus/pci/drivers_probe, for which 0000:03:00.0, 0000:03:00.1 may be meant"},
		{config.ResetPCI, hca.ErrNoDevice, []string{"0000:03:00.0"}, "; if a reset was cut short: echo ADDRESS > /sys/bus/pci/drivers_probe, for which 0000:03:00.0 may be meant"},
		{config.ResetPCI, hca.ErrNoDevice, nil, ""},
		{config.ResetPCI, hca.ErrInvalid, []string{"0000:03:00.0"}, ""},
	} {
		cfg := realConfig()
		cfg.HCA, cfg.Reset = "rxe0", c.reset
		err := cutShort(c.err, cfg, func() []string { return c.found })
		if added := strings.TrimPrefix(err.Error(), c.err.Error()); added != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s, %v, %v: %q, want %q", c.reset, c.err, c.found, added, c.want)
		}
	}
}
