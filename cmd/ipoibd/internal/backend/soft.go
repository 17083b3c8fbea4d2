package backend

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// softHCA is the software HCA on a netdev. It is present as long as the netdev exists.
type softHCA struct {
	cfg      config.Device // its peers and P_Keys are those at the start
	peers    *peerList
	engine   atomic.Pointer[engine]         // opened last
	port     udp.Reserve                    // keeps the UDP ports bound across resets
	await    []hca.QPN                      // that the first engine waits for; see soft.Config
	notices  atomic.Pointer[report.Notices] // by Run; nil: none yet
	hostGUID func() (hca.GUID, error)       // computed once, because a reset must not open files
	fast     *underlayProgram
	log      *slog.Logger

	mu    sync.Mutex // guards what follows
	index int        // of the netdev that guid belongs to
	guid  hca.GUID   // of the HCA
	pkeys []hca.PKey // the P_Key table
}

// engine is an open software HCA.
type engine struct {
	dev   *soft.Device
	lanes []*udp.Transport // the first one has what they share
}

func newSoftHCA(cfg config.Device, fast *bpf.FastPath, log *slog.Logger) (*softHCA, error) {
	if cfg.Underlay == "" {
		netdev, err := udp.DefaultNetdev()
		if err != nil {
			return nil, fmt.Errorf("%w; name one with --underlay, or with underlay in the configuration file", err)
		}
		cfg.Underlay = netdev
		log.Info("no underlay is configured; using the netdev of the default route", "underlay", netdev)
	}
	if err := checkUnderlay(cfg.Underlay); err != nil {
		return nil, err
	}
	if !cfg.FastPath {
		fast = nil
	}
	return &softHCA{
		fast: newUnderlayProgram(fast, log), cfg: cfg, peers: newPeerList(cfg.Peers, cfg.Underlay, log), pkeys: cfg.PKeyTable(), log: log,
		hostGUID: sync.OnceValues(func() (hca.GUID, error) { return hostGUID(cfg.Underlay) }),
	}, nil
}

// checkUnderlay refuses the loopback. It accepts a netdev that does not exist, because the
// device waits for it or its opening fails.
func checkUnderlay(netdev string) error {
	if dev, err := net.InterfaceByName(netdev); err == nil && dev.Flags&net.FlagLoopback != 0 {
		return fmt.Errorf("%s is a loopback, which leads to no other host; choose another netdev as the underlay",
			netdev)
	}
	return nil
}

// Find implements HCA. The GUID stays the same as long as the netdev exists, even if its MAC
// changes.
func (h *softHCA) Find() (qprecovery.Identity, error) {
	n, err := udp.FindNetdev(h.cfg.Underlay)
	if err != nil {
		return qprecovery.Identity{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.index != n.Index {
		guid := soft.GUIDOf(n.MAC)
		if n.MAC == [6]byte{} {
			if guid, err = h.hostGUID(); err != nil {
				return qprecovery.Identity{}, err
			}
		}
		h.guid, h.index = guid, n.Index
	}
	return qprecovery.Identity{
		NodeGUID: h.guid, PortGUID: h.guid, SysImageGUID: h.guid, Index: uint32(n.Index), Name: h.cfg.Underlay,
	}, nil
}

// hostGUID returns the GUID of an HCA on a netdev without a MAC, such as a tunnel. It is
// derived from the machine and the netdev, so it is stable and unique. The machine is
// identified by machine-id(5), or by the host's name if there is none.
func hostGUID(netdev string) (hca.GUID, error) {
	text, err := os.ReadFile("/etc/machine-id")
	machine := strings.TrimSpace(string(text))
	if err != nil || machine == "" {
		if machine, err = os.Hostname(); err != nil {
			return hca.GUID{}, fmt.Errorf("derive a GUID for %s, which has no MAC: %w", netdev, err)
		}
	}
	return guidOf(machine, netdev), nil
}

// guidOf returns a hash as an EUI-64 of a single interface that is locally administered, which
// means that the second bit is clear in the modified form.
func guidOf(machine, netdev string) hca.GUID {
	sum := sha256.Sum256([]byte("ipoibd\x00" + machine + "\x00" + netdev))
	g := hca.GUID(sum[:8])
	g[0] &^= 3
	return g
}

// Watch implements HCA.
func (h *softHCA) Watch(ctx context.Context) (<-chan struct{}, error) { return udp.WatchNetdevs(ctx) }

// Close implements HCA. It releases the UDP port, also if a verb hangs for ever, so that the device was
// not closed.
func (h *softHCA) Close() error { return errors.Join(h.free(), h.port.Close()) }

// Run implements HCA. It keeps the list of peers current, and looks for conditions that an
// operator should know.
func (h *softHCA) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.peers.Run(ctx) })
	wg.Go(func() { h.fast.run(ctx) })
	defer wg.Wait()
	timer := time.NewTimer(lookFirst)
	defer timer.Stop()
	w := watch{log: h.log, duplicates: duplicates{fd: -1}}
	defer func() { w.duplicates.close() }()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-timer.C:
			next := lookFirst
			if e := h.engine.Load(); e != nil {
				found := w.look(now, e, h.cfg.Underlay)
				h.notices.Store(&found)
				next = lookEvery - time.Duration(now.UnixNano())%lookEvery // with others that rest
			}
			timer.Reset(next)
		}
	}
}

// Open implements HCA. It first closes the transport of the previous instance, which a
// zombie may still use.
func (h *softHCA) Open(id qprecovery.Identity) (hca.Device, error) {
	if err := h.free(); err != nil {
		return nil, err
	}
	underlay := udp.Config{Netdev: h.cfg.Underlay, Reserve: &h.port, Lanes: h.cfg.Lanes, FastPath: h.fast.path}
	before := h.port.Destroyed()
	lanes, err := udp.OpenLanes(underlay)
	if h.port.Destroyed() != before {
		h.log.Warn("another process has destroyed the UDP sockets of the software HCA, as 'ss -K' does; " +
			"opening new ones")
	}
	if errors.Is(err, udp.ErrPortTaken) {
		return nil, &busyError{err}
	}
	if err != nil {
		return nil, err
	}
	cfg := soft.Config{
		Name: h.cfg.Name, Transport: lanes[0], PKeys: h.table(), GUID: id.NodeGUID,
		StandardMTU: h.cfg.StandardMTU, KnownPeersOnly: h.cfg.KnownPeersOnly,
	}
	for _, lane := range lanes[1:] {
		cfg.More = append(cfg.More, lane)
	}
	cfg.Await, h.await = h.await, nil
	if len(h.cfg.Peers) > 0 {
		cfg.Peers = h.peers.Addrs
	}
	dev, err := soft.Open(cfg)
	if err != nil {
		return nil, errors.Join(err, closeLanes(lanes))
	}
	h.engine.Store(&engine{dev, lanes})
	h.fast.setUnderlay(int(id.Index))
	dev.SetPKeys(h.table()) // it may have changed since
	return dev, nil
}

// table returns the P_Key table.
func (h *softHCA) table() []hca.PKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pkeys
}

// Change implements changer.
func (h *softHCA) Change(cfg config.Device) {
	h.mu.Lock()
	h.pkeys = cfg.PKeyTable()
	h.mu.Unlock()
	if e := h.engine.Load(); e != nil {
		e.dev.SetPKeys(h.table())
	}
	h.peers.Set(cfg.Peers)
}

// busyError is an error that is ErrBusy as well.
type busyError struct{ error }

// Unwrap makes errors.Is find both.
func (e *busyError) Unwrap() []error { return []error{ErrBusy, e.error} }

// Reset implements HCA. It closes the transport even if the device is still in use, so that
// calls that hang in it return. The UDP port stays reserved.
func (h *softHCA) Reset(context.Context) error { return h.free() }

// Complete implements HCA. No other process resets a software HCA.
func (h *softHCA) Complete(context.Context) error { return h.free() }

// Sharing implements HCA. No other process uses a software HCA, so its resets are
// coordinated only if a directory is configured, which tests of the locks do.
func (h *softHCA) Sharing() Sharing {
	if h.cfg.Coordinator == config.DefaultCoordinator {
		return Sharing{}
	}
	return Sharing{Dir: h.cfg.Coordinator}
}

func (h *softHCA) free() error {
	if e := h.engine.Load(); e != nil {
		return closeLanes(e.lanes)
	}
	return nil
}

func closeLanes(lanes []*udp.Transport) error {
	var errs []error
	for _, l := range lanes {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Info implements HCA.
func (h *softHCA) Info() Info {
	i := Info{HCA: h.cfg.HCA, Kind: KindSoftware, Underlay: h.cfg.Underlay, KnownPeersOnly: h.cfg.KnownPeersOnly}
	if len(h.cfg.Peers) > 0 {
		i.Peers, i.Counters = h.peers.Addrs(), h.peers.Counters()
	}
	destroyed := hca.Counter{Name: "sockets_destroyed", Kind: hca.CountError, Value: h.port.Destroyed()}
	i.Counters = append(i.Counters, destroyed)
	i.Notices.Add(diagnose.NoticeUnresolved, h.peers.notice())
	if found := h.notices.Load(); found != nil {
		i.Notices = append(i.Notices, *found...)
	}
	return i
}
