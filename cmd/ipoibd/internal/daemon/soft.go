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
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// softHCA is the software HCA on a netdev.
type softHCA struct {
	softSource
	cfg    config.Device
	peers  *device.PeerList
	engine atomic.Pointer[engine] // opened last
	log    *slog.Logger
}

// engine is a software HCA beneath what wraps it.
type engine struct {
	*soft.Device
	transport *udp.Transport
}

func newSoftHCA(cfg config.Device, log *slog.Logger) (*softHCA, error) {
	if cfg.Underlay == "" {
		netdev, err := udp.DefaultNetdev()
		if err != nil {
			return nil, fmt.Errorf("%w; name one by --underlay, or by underlay in the file", err)
		}
		cfg.Underlay = netdev
	}
	return &softHCA{softSource: softSource{netdev: cfg.Underlay}, cfg: cfg, peers: device.NewPeerList(cfg.Peers, log), log: log}, nil
}

// run keeps the peer list, and says what it notices.
func (h *softHCA) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.peers.Run(ctx) })
	h.notice(ctx)
	wg.Wait()
}

// noticeEvery is how often the device is asked for what an operator should
// know.
const noticeEvery = time.Second

// notice logs each new notice once.
func (h *softHCA) notice(ctx context.Context) {
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if text := h.natNotice(); text != "" && text != last {
			h.log.Warn(text)
			last = text
		}
	}
}

// natNotice says that datagrams seem to come through a NAT.
func (h *softHCA) natNotice() string {
	e := h.engine.Load()
	if e == nil {
		return ""
	}
	seen, real, ok := e.NATSuspect()
	if !ok {
		return ""
	}
	return fmt.Sprintf("datagrams from %s are dropped: their ICRC is that of source address %s, so a NAT in between translates it, or they are forged; RoCEv2 does not work through NAT", seen, real)
}

// open frees the UDP port of what a zombie still has of the instance before.
func (h *softHCA) open(id qprecovery.Identity) (hca.Device, error) {
	if err := h.free(); err != nil {
		return nil, err
	}
	transport, err := udp.Open(udp.Config{Netdev: h.cfg.Underlay})
	if err != nil {
		return nil, err
	}
	dev, err := soft.Open(h.config(id, transport))
	if err != nil {
		return nil, errors.Join(err, transport.Close())
	}
	h.engine.Store(&engine{dev, transport})
	return dev, nil
}

func (h *softHCA) config(id qprecovery.Identity, transport *udp.Transport) soft.Config {
	cfg := soft.Config{
		Name:           h.cfg.Name,
		Transport:      transport,
		PKeys:          h.cfg.PKeys,
		GUID:           id.NodeGUID,
		StandardMTU:    h.cfg.StandardMTU,
		KnownPeersOnly: h.cfg.KnownPeersOnly,
	}
	if len(h.cfg.Peers) > 0 {
		cfg.Peers = h.peers.Addrs
	}
	return cfg
}

// reset is what resetting a software HCA is: what hangs in it returns, and its
// port is free, whoever holds on to it.
func (h *softHCA) reset(context.Context) error { return h.free() }

func (h *softHCA) free() error {
	if e := h.engine.Load(); e != nil {
		return e.transport.Close()
	}
	return nil
}

func (h *softHCA) describe(s *control.Device) {
	s.Kind, s.Underlay, s.KnownPeersOnly = control.KindSoftware, h.cfg.Underlay, h.cfg.KnownPeersOnly
	if len(h.cfg.Peers) > 0 {
		s.Peers = h.peers.Addrs()
	}
	s.Notice = h.natNotice()
}
