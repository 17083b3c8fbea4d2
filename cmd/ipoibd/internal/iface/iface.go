package iface

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

// ErrDeleted says that somebody deleted the interface under the daemon.
var ErrDeleted = errors.New("interface was deleted")

// maxMTU is the largest MTU that any port can give an interface.
const maxMTU = 4096 - ipoib.HeaderLen

// Iface is one interface. Run's goroutine owns everything but the two pumps'
// halves of the data path.
type Iface struct {
	cfg  config.Interface
	log  *slog.Logger
	host host
	fab  fabric
	path dataPath
	nbrs neighbours

	queries chan func()
	done    chan struct{} // closed when Run has ended
	closed  atomic.Bool
}

// TAP is what an interface asks of its TAP.
type TAP interface {
	link.Device
	SetMTU(mtu int) error
	Neighbours() ([]link.Neighbour, error)
}

// host is the TAP's side.
type host struct {
	tap     TAP
	adopted bool
	now     link.State
	mtu     mtuState
}

// fabric is the device's side.
type fabric struct {
	dev        *device.Device
	want       port.Want
	att        *attachment // nil while not up
	generation uint32      // of the last attachment
	retry      backoff
	err        error // why not up
}

// dataPath is what the pumps run.
type dataPath struct {
	tx       *ud.Tx
	rx       *ud.Rx
	slow     slowPath
	snapshot *ud.Snapshot
}

// Open makes or adopts the interface, down and without carrier, and prepares
// its data path. portGUID is for the stable MAC.
func Open(cfg config.Interface, dev *device.Device, portGUID hca.GUID, log *slog.Logger) (*Iface, error) {
	tap, adopted, err := link.Open(link.Spec{Name: cfg.Name, MAC: link.MACFor(portGUID, uint16(cfg.PKey), cfg.Name), MTU: initialMTU})
	if err != nil {
		return nil, err
	}
	f, err := New(cfg, tap, dev, log)
	if err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	if f.host.adopted = adopted; adopted {
		f.host.mtu.ours = 0
	}
	return f, nil
}

// initialMTU is what a new interface has until its port is known.
const initialMTU = 1500

// New returns an interface on a TAP that the caller opened.
func New(cfg config.Interface, tap TAP, dev *device.Device, log *slog.Logger) (*Iface, error) {
	f := &Iface{
		cfg:     cfg,
		log:     log.With("interface", cfg.Name),
		host:    host{tap: tap, mtu: mtuState{ours: initialMTU}},
		fab:     fabric{dev: dev, want: port.Want{Port: cfg.Port, PKey: cfg.PKey}, err: errStarting},
		nbrs:    newNeighbours(),
		queries: make(chan func()),
		done:    make(chan struct{}),
	}
	if cfg.GID != "" {
		gid, err := netip.ParseAddr(cfg.GID)
		if err != nil {
			return nil, fmt.Errorf("GID: %w", err)
		}
		f.fab.want.GID = gid
	}
	return f, f.makePath()
}

var errStarting = errors.New("starting")

func (f *Iface) makePath() (err error) {
	p := &f.path
	p.slow, p.snapshot = newSlowPath(), &ud.Snapshot{}
	p.tx, err = ud.NewTx(ud.TxConfig{
		Slots: f.cfg.SendWRs, MaxMTU: maxMTU, MTU: initialMTU, Scope: port.ScopeLocal, PKey: f.cfg.PKey,
		Source: f.host.tap, SlowPath: p.slow, Peers: p.snapshot, OnFailure: f.logFailure("send"),
	})
	if err != nil {
		return err
	}
	p.rx, err = ud.NewRx(ud.RxConfig{
		Slots: f.cfg.RecvWRs, PortMTU: maxMTU + ipoib.HeaderLen, MTU: initialMTU,
		Sink: f.host.tap, SlowPath: p.slow, Peers: p.snapshot, OnFailure: f.logFailure("receive"),
	})
	return err
}

func (f *Iface) logFailure(what string) func(ud.Failure) {
	return func(x ud.Failure) {
		if x.WC.Status != hca.WCWRFlushErr { // a consequence of another one
			f.log.Warn(what+" failed", "status", x.WC.Status.String(), "bytes", x.SGE.Length, "lkey", x.SGE.LKey, "to", x.Dest.QPN.String())
		}
	}
}

// Name returns the interface's name.
func (f *Iface) Name() string { return f.cfg.Name }

// Close gives the TAP up; ib0 stays, without carrier. Run has ended or was
// never called. Harmless when repeated.
func (f *Iface) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	return f.host.tap.Close()
}

// Run works until ctx ends (nil) or the interface cannot go on.
func (f *Iface) Run(ctx context.Context) error {
	defer close(f.done)
	links, err := f.host.tap.Watch(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.cfg.Name, err)
	}
	views, unsubscribe := f.fab.dev.Subscribe()
	defer unsubscribe()
	defer f.detach("stopping")
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.setTimer(timer)
		select {
		case <-ctx.Done():
			return nil
		case st, ok := <-links:
			if !ok || !st.Present {
				return f.deleted(ctx)
			}
			f.hostChanged(st)
			f.reconcile()
		case <-views:
			f.reconcile()
		case err := <-f.fab.att.failures():
			f.pumpFailed(err)
			f.reconcile()
		case it := <-f.path.slow.host.ready:
			f.step(neigh.FromHost{Frame: it.data})
			f.path.slow.host.done(it)
		case it := <-f.path.slow.fabric.ready:
			f.step(neigh.FromFabric{Msg: it.data, SrcGID: it.from.GID, SrcQPN: it.from.QPN, Multicast: it.from.Multicast})
			f.path.slow.fabric.done(it)
		case r := <-f.fab.att.ahResults():
			f.ahResult(r)
		case q := <-f.queries:
			q()
		case <-timer.C:
			f.expire()
		}
	}
}

func (f *Iface) deleted(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%s: %w by somebody else; a new start makes it again", f.cfg.Name, ErrDeleted)
}

// setTimer arms the timer for the next thing to do.
func (f *Iface) setTimer(t *time.Timer) {
	next := time.Now().Add(time.Hour)
	for _, at := range []time.Time{f.nbrs.deadline(), f.fab.retry.at} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	t.Reset(time.Until(next))
}

func (f *Iface) expire() {
	now := time.Now()
	if at := f.fab.retry.at; !at.IsZero() && !at.After(now) {
		f.fab.retry.at = time.Time{}
		f.reconcile()
	}
	f.step(neigh.Tick{})
}

// Status asks Run's goroutine for the state.
func (f *Iface) Status(ctx context.Context) (control.Interface, error) {
	out := make(chan control.Interface, 1)
	select {
	case f.queries <- func() { out <- f.status() }:
		return <-out, nil
	case <-f.done:
		return control.Interface{}, fmt.Errorf("%s has ended", f.cfg.Name)
	case <-ctx.Done():
		return control.Interface{}, ctx.Err()
	}
}
