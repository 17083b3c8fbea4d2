package iface

import (
	"context"
	"errors"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// device configures the device of h, which is what its own netdev is plugged into.
func (h *testHost) device() device.Config {
	return device.Config{Name: "soft", Open: h.open, List: h, Reset: h.reset, Log: quiet}
}

func (h *testHost) guid() hca.GUID { return hca.GUID{2, 0, 0, 0xff, 0xfe, 0, 0, h.under.As4()[3]} }

// List implements device.Lister.
func (h *testHost) List(context.Context) []qprecovery.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.absent {
		return nil
	}
	return []qprecovery.Identity{{NodeGUID: h.guid(), PortGUID: h.guid(), SysImageGUID: h.guid(), Index: h.index}}
}

// Watch implements device.Lister.
func (h *testHost) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	lists := make(chan []qprecovery.Identity)
	go func() {
		defer close(lists)
		for ctx.Err() == nil {
			select {
			case lists <- h.List(ctx):
			case <-ctx.Done():
			}
			select {
			case <-h.plugged:
			case <-ctx.Done():
			}
		}
	}()
	return lists
}

// replugged makes Watch read the list again. h.mu is held.
func (h *testHost) replugged() {
	select {
	case h.plugged <- struct{}{}:
	default: // it has not looked yet
	}
}

// reset lets verbs that hang return, and frees the netdev that a zombie holds.
func (h *testHost) reset(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free()
}

// free releases the rest of the device that was opened last. h.mu is held.
func (h *testHost) free() error {
	if h.faults == nil {
		return nil
	}
	h.faults.Clear()
	h.faults.Release()
	var errs []error
	for _, p := range h.ports {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
