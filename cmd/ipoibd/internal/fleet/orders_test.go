package fleet

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/iface"
)

// What a change removes takes no orders from then on, although it is shown until it has ended.
func TestWhatIsRemovedTakesNoOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := make(chan struct{})
		slow := func(ctx context.Context) { <-ctx.Done(); <-last }
		f := New(t.Context(), Options{Log: slog.New(slog.DiscardHandler)})
		f.devices = []*Device{{name: "soft", run: begin(slow)}}
		f.ifaces = []*Interface{{iface: new(iface.Iface), run: begin(slow), failure: errors.New("so that it is not deleted")}}
		if len(f.Devices()) != 1 || len(f.Interfaces()) != 1 {
			t.Fatal("they take no orders before")
		}
		go f.Commit(config.Plan{
			Devices:    []config.Step[config.Device]{{Name: "soft", Change: config.Removed}},
			Interfaces: []config.Step[config.Interface]{{Name: f.ifaces[0].Name(), Change: config.Removed}},
		}, Made{cfg: new(config.Config)})
		synctest.Wait()
		if devices, ifaces := f.Devices(), f.Interfaces(); len(devices) != 1 || len(ifaces) != 0 {
			t.Errorf("while the interface ends: %d devices, %d interfaces take orders; want the device", len(devices), len(ifaces))
		}
		if devices, ifaces := f.lists(); len(devices) != 1 || len(ifaces) != 1 {
			t.Errorf("while the interface ends: %d devices, %d interfaces are shown", len(devices), len(ifaces))
		}
		close(last)
		synctest.Wait()
		if devices, ifaces := f.Devices(), f.Interfaces(); len(devices)+len(ifaces) != 0 {
			t.Errorf("afterwards: %d devices, %d interfaces", len(devices), len(ifaces))
		}
	})
}
