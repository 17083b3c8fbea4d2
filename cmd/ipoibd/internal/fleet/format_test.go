package fleet

import (
	"log/slog"
	"os"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/kernel/capsule/capsuletest"
)

// The format of what is handed over outlives versions.
func TestFormat(t *testing.T) {
	capsuletest.Check(t, "fleet", state{})
	capsuletest.Check(t, "device", deviceState{})
}

// Descriptors that another version has added to known parts are closed.
func TestUnknownDescriptorsAreClosed(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	cfg := config.New()
	cfg.Devices, cfg.Interfaces = []config.Device{config.NewDevice()}, []config.Interface{config.NewInterface()}
	f := New(t.Context(), Options{Log: slog.New(slog.DiscardHandler)})
	before := open()
	w := capsule.NewWriter()
	w.Room(interfaceRoom(cfg.Interfaces[0].Name)).Put("interface", map[string]any{}, os.Stdin, os.Stdin)
	w.Room(deviceRoom(cfg.Devices[0].Name)).Put("device", map[string]any{}, os.Stdin)
	parts, fds, err := w.Contents()
	if err != nil {
		t.Fatal(err)
	}
	r, err := capsule.NewReader(parts, fds)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := f.Import(&cfg, r) // whether it succeeds depends on the machine's netdevs
	_ = m.Close()
	r.Close()
	if now := open(); now != before {
		t.Errorf("%d descriptors are open, were %d", now, before)
	}
}
