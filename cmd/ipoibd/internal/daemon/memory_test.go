package daemon

import (
	"log/slog"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
)

// A daemon that has only software HCAs does not warn that its memory cannot be locked.
func TestMemoryWarning(t *testing.T) {
	software, hardware := config.Device{HCA: config.SoftHCA}, config.Device{HCA: "mlx5_0"}
	for _, c := range []struct {
		devices []config.Device
		want    slog.Level
	}{{[]config.Device{software}, slog.LevelDebug}, {[]config.Device{software, hardware}, slog.LevelWarn}} {
		if got := memoryLevel(&config.Config{Devices: c.devices}); got != c.want {
			t.Errorf("%+v: %s, want %s", c.devices, got, c.want)
		}
	}
}
