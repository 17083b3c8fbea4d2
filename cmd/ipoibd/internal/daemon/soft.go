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
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
)

// softDevice is a software HCA on a netdev, opened again whenever it is lost.
type softDevice struct {
	*device.Device
	cfg      config.Device
	peers    *device.PeerList
	portGUID hca.GUID
	log      *slog.Logger

	engine atomic.Pointer[soft.Device] // what was opened last, beneath what wraps it
	first  hca.Device                  // opened at the start, for a mistake to be told at once
}

// newSoftDevice opens the device for the first time.
func newSoftDevice(cfg config.Device, log *slog.Logger) (*softDevice, error) {
	if cfg.Underlay == "" {
		netdev, err := udp.DefaultNetdev()
		if err != nil {
			return nil, fmt.Errorf("%w; name one by --underlay, or by underlay in the file", err)
		}
		cfg.Underlay = netdev
	}
	d := &softDevice{cfg: cfg, peers: device.NewPeerList(cfg.Peers, log), log: log.With("device", cfg.Name)}
	d.Device = device.New(device.Config{Name: cfg.Name, Open: d.open, Log: log})
	first, err := d.openNow()
	if err != nil {
		return nil, err
	}
	attr, err := first.QueryPort(1)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	d.first, d.portGUID = first, attr.GUID
	return d, nil
}

// discard closes what was opened at the start and never used. It does not run
// beside run.
func (d *softDevice) discard() error {
	if d.first == nil {
		return nil
	}
	return d.first.Close()
}

// run keeps the device and its peer list, and says what it notices.
func (d *softDevice) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { d.peers.Run(ctx) })
	wg.Go(func() { d.notice(ctx) })
	d.Run(ctx)
	wg.Wait()
	if err := d.discard(); err != nil {
		d.log.Error("close device", "err", err)
	}
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
		if s := d.View().Session; s != nil {
			if text := d.natNotice(); text != "" && text != last {
				d.log.Warn(text)
				last = text
			}
		}
	}
}

// open is the device.Opener: the first time what was opened at the start, later
// once the netdev is there.
func (d *softDevice) open(ctx context.Context) (hca.Device, error) {
	if first := d.first; first != nil {
		d.first = nil
		return first, nil
	}
	if err := udp.WaitNetdev(ctx, d.cfg.Underlay); err != nil {
		return nil, err
	}
	return d.openNow()
}

func (d *softDevice) openNow() (hca.Device, error) {
	transport, err := udp.Open(udp.Config{Netdev: d.cfg.Underlay})
	if err != nil {
		return nil, err
	}
	cfg := soft.Config{
		Name:           d.cfg.Name,
		Transport:      transport,
		PKeys:          d.cfg.PKeys,
		StandardMTU:    d.cfg.StandardMTU,
		KnownPeersOnly: d.cfg.KnownPeersOnly,
	}
	if len(d.cfg.Peers) > 0 {
		cfg.Peers = d.peers.Addrs
	}
	if transport.State().MAC == [6]byte{} {
		cfg.GUID, err = hostGUID(d.cfg.Underlay)
	}
	var dev *soft.Device
	if err == nil {
		dev, err = soft.Open(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, transport.Close())
	}
	d.engine.Store(dev)
	return dev, nil
}
