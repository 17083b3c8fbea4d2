package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/qprecovery"
)

// kernel is the kernel's part of an HCA. Tests replace it.
type kernel struct {
	list      func() ([]rdma.Device, error)
	watch     func(context.Context) (<-chan struct{}, error)
	processes func(rdma.Device) ([]rdma.User, error) // that have the device open
	users     func(rdma.Device) ([]rdma.User, error) // these, and parts of the kernel
	addLink   func(name, netdev string) error
	delLink   func(name string) error
	function  func(addr string) (function, error) // of PCI
	save      func(netdev string) (restore func() error, err error)
	pauses    func(rdma.Device) (read func() (uint64, error), end func() error)
}

var theKernel = kernel{
	rdma.List, rdma.Watch, rdma.Processes, rdma.Users, rdma.AddLink, rdma.DelLink,
	func(addr string) (function, error) { return rdma.OpenFunction(addr) },
	func(netdev string) (func() error, error) {
		n, err := rdma.SaveNetdev(netdev)
		return n.Restore, err
	},
	openPauses,
}

func (k kernel) find(name string) (rdma.Device, error) {
	devices, err := k.list()
	if err != nil {
		return rdma.Device{}, err
	}
	return rdma.Find(devices, name)
}

// realHCA is an HCA of the kernel. Once it has been opened, it is identified by its GUIDs, not
// by its name.
type realHCA struct {
	cfg     config.Device
	kernel  kernel
	openHCA func(name string) (hca.Device, error)
	log     *slog.Logger
	lockDir string        // of the locks by which processes share the device; "": it is not shared
	busy    chan struct{} // full while the kernel resets the device

	mu    sync.Mutex          // guards what follows
	known qprecovery.Identity // of the device; zero: it has not been opened
	last  rdma.Device         // the device, as Find has last seen it
}

func newRealHCA(
	ctx context.Context, cfg config.Device, open func(string) (hca.Device, error), k kernel, log *slog.Logger,
) (*realHCA, error) {
	h := &realHCA{
		cfg:     cfg,
		kernel:  k,
		openHCA: pinned(open),
		log:     log,
		lockDir: lockDir(cfg, log),
		busy:    make(chan struct{}, 1),
	}
	d, err := k.find(cfg.HCA)
	if errors.Is(err, hca.ErrNoDevice) {
		if failed := h.completeCutShort(ctx); failed != nil {
			err = errors.Join(err, failed)
		} else {
			d, err = k.find(cfg.HCA)
		}
	}
	if err != nil {
		return h, cutShort(err, cfg, rdma.Driverless)
	}
	return h, k.check(cfg.Reset, d)
}

// Find implements HCA. If another device has the name of the known one, Find prefers the
// known one.
func (h *realHCA) Find() (qprecovery.Identity, error) {
	devices, err := h.kernel.list()
	if err != nil {
		return qprecovery.Identity{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	d, ok := h.choose(devices)
	if !ok && h.dead() {
		id := h.identity(h.last)
		id.Dead = true
		return id, nil
	}
	if !ok {
		return qprecovery.Identity{}, fmt.Errorf("RDMA device %s: %w", h.cfg.HCA, hca.ErrNoDevice)
	}
	id := h.identity(d)
	if h.known == (qprecovery.Identity{}) || id.Same(h.known) {
		h.last = d
	}
	return id, nil
}

// dead reports whether the PCI function of the known device is present and has a driver that has
// registered no RDMA device, although a reset may help. h.mu is held.
func (h *realHCA) dead() bool {
	resets := h.cfg.Reset == config.ResetDriver || h.cfg.Reset == config.ResetPCI
	if !resets || h.known == (qprecovery.Identity{}) || h.last.Parent != "" {
		return false
	}
	f, err := h.kernel.function(h.last.PCIAddr)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Bound()
}

// own returns the known device, or an error if only another device has its name. If none is known,
// because it was never open, it is the one with the configured name.
func (h *realHCA) own() (rdma.Device, error) {
	id, err := h.Find()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.known != (qprecovery.Identity{}) && !id.Same(h.known) {
		err = fmt.Errorf("RDMA device %s has been replaced by another device: %w", id.Name, hca.ErrNoDevice)
	}
	return h.last, err
}

// choose returns the known device, or else the one with the configured name. h.mu is held.
func (h *realHCA) choose(devices []rdma.Device) (chosen rdma.Device, ok bool) {
	for _, d := range devices {
		same := h.known != qprecovery.Identity{} && h.identity(d).Same(h.known)
		if same && d.Name == h.cfg.HCA {
			return d, true
		}
		if same || d.Name == h.cfg.HCA && !ok {
			chosen, ok = d, true
		}
	}
	return chosen, ok
}

// identity returns the identity of a device. If the netdev of the known device was renamed,
// its first name stays part of the identity. A device is on that netdev if it has the index
// of the instance found last, because the kernel does not reuse an index, or if its netdev
// has the same name, because a reset adds the device again on the netdev of that name. h.mu
// is held.
func (h *realHCA) identity(d rdma.Device) qprecovery.Identity {
	id := identityOf(d)
	known := h.known != qprecovery.Identity{}
	if known && (d.Index == h.last.Index || d.Parent == h.last.Parent) {
		id.Parent = h.known.Parent
	}
	return id
}

// identityOf returns the identity of a device. The kernel's indices start at 0, which means
// unknown to qprecovery, so they are increased by 1. A Soft-RoCE device is identified by its
// netdev, not by the PCI function below it.
func identityOf(d rdma.Device) qprecovery.Identity {
	id := qprecovery.Identity{
		NodeGUID: d.NodeGUID, SysImageGUID: d.SysImageGUID,
		PCIAddr: d.PCIAddr, Parent: d.Parent, Index: d.Index + 1, Name: d.Name,
	}
	if d.Parent != "" {
		id.PCIAddr = ""
	}
	if p, ok := d.Port(1); ok {
		id.PortGUID = p.GUID
	}
	return id
}

// Watch implements HCA.
func (h *realHCA) Watch(ctx context.Context) (<-chan struct{}, error) { return h.kernel.watch(ctx) }

// Open implements HCA. It opens the device by its name and then checks that no other device
// has taken the name in the meantime.
func (h *realHCA) Open(id qprecovery.Identity) (hca.Device, error) {
	dev, err := h.openHCA(id.Name)
	if err != nil {
		return nil, err
	}
	now, err := h.kernel.find(id.Name)
	if err == nil && now.Index+1 != id.Index {
		err = fmt.Errorf("RDMA device %s was replaced while it was being opened: %w", id.Name, hca.ErrNoDevice)
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	h.mu.Lock()
	if h.known == (qprecovery.Identity{}) || h.cfg.AllowOtherDevice {
		h.known, h.last = id, now
	}
	h.mu.Unlock() // reportPauses may block
	return &identified{h.kernel.reportPauses(dev, now), id}, nil
}

// Close implements HCA. An opening leaves no resources behind.
func (h *realHCA) Close() error { return nil }

// Info implements HCA.
func (h *realHCA) Info() Info {
	i := Info{HCA: h.cfg.HCA, Kind: KindHardware, Underlay: h.found().Parent, Reset: h.cfg.Reset}
	if i.Underlay != "" {
		i.Kind = KindSoftRoCE
	}
	return i
}

// identified is an HCA with the identity that the list gives it. Its driver may report other
// GUIDs, or none.
type identified struct {
	hca.Device
	id qprecovery.Identity
}

// Attr implements hca.Device.
func (d *identified) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.NodeGUID, a.SysImageGUID, a.PCIAddr, a.Parent = d.id.NodeGUID, d.id.SysImageGUID, d.id.PCIAddr, d.id.Parent
	return a
}

// QueryPort implements hca.Device.
func (d *identified) QueryPort(num uint8) (hca.PortAttr, error) {
	a, err := d.Device.QueryPort(num)
	if num == 1 {
		a.GUID = d.id.PortGUID
	}
	return a, err
}

// WireBlocked implements [hca.WireReporter].
func (d *identified) WireBlocked() uint64 { return hca.WireBlockedOf(d.Device) }
