package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// softDevice is a software HCA on a netdev, opened again whenever it is lost.
type softDevice struct {
	*device.Device
	cfg      config.Device
	peers    *device.PeerList
	portGUID hca.GUID
	slot     *slot
	plans    plans
	engine   atomic.Pointer[engine] // opened last
	log      *slog.Logger
}

// engine is a software HCA beneath what wraps it.
type engine struct {
	*soft.Device
	transport *udp.Transport
}

// newSoftDevice opens the device for a moment, so that a mistake is told at once.
// users names its interfaces, for those who share it.
func newSoftDevice(cfg config.Device, users string, opts Options, j *journal.Journal) (*softDevice, error) {
	if cfg.Underlay == "" {
		netdev, err := udp.DefaultNetdev()
		if err != nil {
			return nil, fmt.Errorf("%w; name one by --underlay, or by underlay in the file", err)
		}
		cfg.Underlay = netdev
	}
	log := opts.Log.With("device", cfg.Name)
	d := &softDevice{
		cfg: cfg, peers: device.NewPeerList(cfg.Peers, opts.Log),
		slot: newSlot(cfg.Underlay, log), log: log,
	}
	d.Device = device.New(device.Config{
		Name: cfg.Name, Open: d.open, List: d.slot, Reset: d.reset,
		Coordinator: cfg.Coordinator, Users: users, Grace: cfg.Grace, GiveUpAfter: cfg.GiveUpAfter, AllowForeign: cfg.AllowOtherDevice,
		Journal: j, Log: opts.Log,
	})
	return d, d.probe()
}

// probe learns the GUID of the port, which the stable MAC of an interface is made
// of.
func (d *softDevice) probe() error {
	id, err := d.slot.look()
	if err != nil {
		return err
	}
	e, err := d.openEngine(id)
	if err != nil {
		return err
	}
	d.portGUID = id.PortGUID
	return e.Close()
}

// run keeps the device and its peer list, and says what it notices.
func (d *softDevice) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { d.peers.Run(ctx) })
	wg.Go(func() { d.notice(ctx) })
	d.Run(ctx)
	d.plans.retire()
	wg.Wait()
}

// noticeEvery is how often the device is asked for what an operator should
// know.
const noticeEvery = time.Second

// notice logs each new notice once.
func (d *softDevice) notice(ctx context.Context) {
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if text := d.natNotice(); text != "" && text != last {
			d.log.Warn(text)
			last = text
		}
	}
}

// open is the device.Opener. What a zombie still has of the instance before ends.
func (d *softDevice) open(ctx context.Context) (hca.Device, error) {
	if err := d.reset(ctx); err != nil {
		return nil, err
	}
	id, err := d.slot.look()
	if err != nil {
		return nil, err
	}
	e, err := d.openEngine(id)
	if err != nil {
		return nil, err
	}
	d.engine.Store(e)
	dev, err := d.plans.wrap(e.Device, faults.Options{OnUnplug: func() { _ = d.slot.plug(pluggedOut) }})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return dev, nil
}

func (d *softDevice) openEngine(id qprecovery.Identity) (*engine, error) {
	transport, err := udp.Open(udp.Config{Netdev: d.cfg.Underlay})
	if err != nil {
		return nil, err
	}
	cfg := soft.Config{
		Name:           d.cfg.Name,
		Transport:      transport,
		PKeys:          d.cfg.PKeys,
		GUID:           id.NodeGUID,
		StandardMTU:    d.cfg.StandardMTU,
		KnownPeersOnly: d.cfg.KnownPeersOnly,
	}
	if len(d.cfg.Peers) > 0 {
		cfg.Peers = d.peers.Addrs
	}
	dev, err := soft.Open(cfg)
	if err != nil {
		return nil, errors.Join(err, transport.Close())
	}
	return &engine{dev, transport}, nil
}

// reset is what resetting a software HCA is: what hangs in it returns, and its
// port is free, whoever holds on to it.
func (d *softDevice) reset(context.Context) error {
	d.plans.retire()
	if e := d.engine.Load(); e != nil {
		return e.transport.Close()
	}
	return nil
}
