// Package backendtest provides an HCA for tests: the software HCA on the in-memory fabric. The
// test decides which HCA is present, and has access to every instance that was opened.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// Config of an HCA.
type Config struct {
	Fabric *memfabric.Fabric
	Netdev string     // its name on the fabric
	MTU    int        // of the netdev
	Lanes  int        // 0 means 1
	Addr   netip.Addr // of the netdev
	GUID   hca.GUID   // of the first HCA
	Rand   *rand.Rand // of queue pair numbers; nil: see soft.Config
}

// HCA is a [backend.HCA]. Any goroutine may call its methods.
type HCA struct {
	cfg     Config
	changed chan struct{} // has a value when guid or index changed

	mu        sync.Mutex // guards what follows
	guid      hca.GUID   // of the present HCA; zero: none
	index     uint32     // of the netdev
	instances []Instance
}

// Instance is one opening of an HCA.
type Instance struct {
	Port *memfabric.Port   // of the first lane; it represents the netdev
	more []*memfabric.Port // of the other lanes
	*soft.Device
}

// New returns a present HCA.
func New(cfg Config) *HCA {
	return &HCA{cfg: cfg, guid: cfg.GUID, index: 1, changed: make(chan struct{}, 1)}
}

// Plug makes the HCA with this GUID present, with a new index. It does nothing if that HCA is
// present already.
func (h *HCA) Plug(guid hca.GUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guid != guid {
		h.guid = guid
		h.index++
		h.hint()
	}
}

// Unplug removes the HCA and its netdev. Idempotent.
func (h *HCA) Unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guid != (hca.GUID{}) {
		h.guid = hca.GUID{}
		h.instances[len(h.instances)-1].Port.Remove()
		h.hint()
	}
}

func (h *HCA) hint() {
	select {
	case h.changed <- struct{}{}:
	default: // the last hint has not been received yet
	}
}

// Instances returns every instance that was opened, the last one at the end.
func (h *HCA) Instances() []Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.instances)
}

// Last returns the instance that was opened last.
func (h *HCA) Last() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.instances[len(h.instances)-1]
}

// Find implements backend.HCA.
func (h *HCA) Find() (qprecovery.Identity, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guid == (hca.GUID{}) {
		return qprecovery.Identity{}, fmt.Errorf("netdev %s: %w", h.cfg.Netdev, hca.ErrNoDevice)
	}
	return qprecovery.Identity{
		NodeGUID: h.guid, PortGUID: h.guid, SysImageGUID: h.guid,
		Index: h.index, Name: h.cfg.Netdev,
	}, nil
}

// Watch implements backend.HCA.
func (h *HCA) Watch(context.Context) (<-chan struct{}, error) { return h.changed, nil }

// Open implements backend.HCA. It first frees the netdev of the previous instance.
func (h *HCA) Open(id qprecovery.Identity) (hca.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.free(); err != nil {
		return nil, err
	}
	ports := h.cfg.Fabric.AttachLanes(max(1, h.cfg.Lanes), h.cfg.Netdev, h.cfg.MTU, h.cfg.Addr)
	cfg := soft.Config{Name: "soft", Transport: ports[0], GUID: id.NodeGUID, Rand: h.cfg.Rand}
	for _, p := range ports[1:] {
		cfg.More = append(cfg.More, p)
	}
	dev, err := soft.Open(cfg)
	if err != nil {
		return nil, err
	}
	h.instances = append(h.instances, Instance{ports[0], ports[1:], dev})
	return dev, nil
}

// Reset implements backend.HCA. Calls that hang in the HCA return.
func (h *HCA) Reset(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free()
}

// Complete implements backend.HCA. No other process uses the HCA.
func (h *HCA) Complete(ctx context.Context) error { return h.Reset(ctx) }

// Sharing implements backend.HCA. No other process uses the HCA.
func (h *HCA) Sharing() backend.Sharing { return backend.Sharing{} }

// free closes the netdev of the instance opened last. h.mu is held.
func (h *HCA) free() error {
	if len(h.instances) == 0 {
		return nil
	}
	last := &h.instances[len(h.instances)-1]
	err := last.Port.Close()
	for _, p := range last.more {
		err = errors.Join(err, p.Close())
	}
	return err
}

// Run implements backend.HCA. It does nothing.
func (h *HCA) Run(ctx context.Context) { <-ctx.Done() }

// Info implements backend.HCA.
func (h *HCA) Info() backend.Info {
	return backend.Info{HCA: "soft", Kind: backend.KindSoftware, Underlay: h.cfg.Netdev}
}

// Close implements backend.HCA. It does nothing.
func (h *HCA) Close() error { return nil }
