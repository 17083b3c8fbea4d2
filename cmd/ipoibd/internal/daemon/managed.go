package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// backend is what a software HCA and a real one do each in its own way. find and
// watch are called by several goroutines, the others by one at a time.
type backend interface {
	source
	// open opens the HCA that find returned.
	open(id qprecovery.Identity) (hca.Device, error)
	// reset resets the HCA itself, whoever holds on to it. It ends with ctx.
	reset(ctx context.Context) error
	// run does what there is to do besides, until ctx ends.
	run(ctx context.Context)
	// describe fills in what is known of the HCA, open or not.
	describe(s *control.Device)
	// close releases resources that outlive an opening. It is called once the HCA
	// is closed for good.
	close() error
}

// sharedReset is a backend whose device other processes may use, and whose reset
// breaks what they have open.
type sharedReset interface {
	means() string // empty: the device is not reset
	// complete completes a reset that was cut short.
	complete(ctx context.Context) error
	// holders names the other users of the device, as far as they can be seen.
	holders() []string
}

// managed is an HCA that is opened again whenever it is lost.
type managed struct {
	*device.Device
	cfg      config.Device
	hca      backend
	slot     *slot
	plans    *plans // nil: faults are not allowed
	portGUID hca.GUID

	reindexes atomic.Bool // set by a fault: the next reset changes the index
}

// newManaged opens the HCA for a moment, so that a mistake is told at once.
func newManaged(cfg config.Device, b backend, interfaces []config.Interface, opts Options, j *journal.Journal) (*managed, error) {
	d := &managed{cfg: cfg, hca: b, slot: newSlot(b, opts.Log.With("device", cfg.Name))}
	if opts.AllowFaults {
		d.plans = &plans{}
	}
	conf := device.Config{
		Name: cfg.Name, Open: d.open, List: d.slot, Reset: d.reset,
		Coordinator: cfg.Coordinator, Users: users(interfaces), Grace: cfg.Grace, GiveUpAfter: cfg.GiveUpAfter, AllowForeign: cfg.AllowOtherDevice,
		Journal: j, Log: opts.Log,
	}
	if s, ok := b.(sharedReset); ok {
		conf.Coordinator, conf.Means, conf.Holders = lockDir(cfg, d.slot.log), s.means(), s.holders
		conf.Complete = func(ctx context.Context) error { d.plans.retire(); return s.complete(ctx) }
	} else if conf.Coordinator == config.DefaultCoordinator {
		conf.Coordinator = "" // no other process uses a software HCA
	}
	d.Device = device.New(conf)
	return d, d.probe(interfaces)
}

// probe learns the GUID of the port, from which the stable MAC of an interface is
// derived, and checks that the ports can serve at all. If another process has the UDP
// port, probe succeeds without that check: the port may become free, and run tries
// again.
func (d *managed) probe(interfaces []config.Interface) error {
	id, err := d.slot.look()
	if err != nil {
		return err
	}
	d.portGUID = id.PortGUID
	dev, err := d.hca.open(id)
	if errors.Is(err, udp.ErrPortTaken) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range interfaces {
		err = errors.Join(err, checkPort(dev, f.Port))
	}
	return errors.Join(err, dev.Close())
}

// checkPort finds what waiting does not help against.
func checkPort(dev hca.Device, num uint8) error {
	if n := dev.Attr().Ports; num > n {
		return fmt.Errorf("there is no port %d, the device has %d: %w", num, n, hca.ErrInvalid)
	}
	attr, err := dev.QueryPort(num)
	if err == nil && attr.LinkLayer == hca.LinkLayerInfiniBand {
		err = fmt.Errorf("port %d: %w", num, port.ErrLinkLayer)
	}
	return err
}

// run keeps the device, and what the HCA needs besides.
func (d *managed) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { d.hca.run(ctx) })
	d.Run(ctx)
	d.plans.retire()
	wg.Wait()
	if err := d.hca.close(); err != nil {
		d.slot.log.Error("cannot release the device's resources", "err", err)
	}
}

// open is the device.Opener. Of the instance before ends what a fault makes hang.
func (d *managed) open(context.Context) (hca.Device, error) {
	d.plans.retire()
	id, err := d.slot.look()
	if err != nil {
		return nil, err
	}
	dev, err := d.hca.open(id)
	if err != nil || d.plans == nil {
		return dev, err
	}
	wrapped, err := d.plans.wrap(dev, faults.Options{OnUnplug: func() { _ = d.slot.plug(pluggedOut) }})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return wrapped, nil
}

func (d *managed) reset(ctx context.Context) error {
	d.plans.retire()
	err := d.hca.reset(ctx)
	if err == nil && d.reindexes.Swap(false) {
		d.slot.reindex()
	}
	return err
}

// inject injects a fault of hca/faults into the device. Errors:
// control.ErrConflict while there is no device; hca.ErrInvalid.
func (d *managed) inject(f faults.Fault) error {
	if d.View().Session == nil {
		return errNotOpen
	}
	return d.plans.inject(f)
}

// replug undoes an unplug: the same device comes back, or another one.
func (d *managed) replug(p plugged) error { return d.slot.plug(p) }

// newBackend is the backend that a device is configured to have.
func newBackend(cfg config.Device, opts Options) (backend, error) {
	log := opts.Log.With("device", cfg.Name)
	if cfg.IsSoft() {
		return newSoftHCA(cfg, log)
	}
	return newRealHCA(cfg, opts.OpenHCA, theKernel, log)
}
