package iface

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// Why an interface ends for good.
var (
	ErrDeleted = errors.New("another process deleted the interface, or its container ended; restart the daemon to make it again")
	ErrMoved   = errors.New("the interface was moved to another network namespace, where this daemon may not follow it: " +
		"run it with CAP_SYS_ADMIN and CAP_NET_BROADCAST, or in that namespace")
)

// Iface is one interface. Run's goroutine owns everything but the two pumps'
// halves of the data path.
type Iface struct {
	cfg  config.Interface
	log  *slog.Logger
	host host
	fab  fabric
	path dataPath
	nbrs neighbours

	rec     recovery
	shown   shown
	queries chan func()
	done    chan struct{} // closed when Run has ended
	end     error         // of Run, once done is closed
	closed  atomic.Bool
}

// TAP is what an interface asks of its TAP.
type TAP interface {
	link.Device
	SetMTU(mtu int) error
	Neighbours() ([]link.Neighbour, error)
	Unresolved() ([]netip.Addr, error)
	Remove() error
}

// host is the TAP's side.
type host struct {
	tap     TAP
	adopted bool
	now     link.State
	mtu     mtuState
	custody custody
}

// fabric is the device's side.
type fabric struct {
	dev     *device.Device
	want    port.Want
	att     *attachment // nil while nothing is held of the device
	used    uint64      // instance of the session that was used last
	aim     target      // that retry is about
	retry   backoff
	err     error // why not up
	lastErr error // the last failure, over or not
}

// dataPath is what the pumps run.
type dataPath struct {
	tx       *ud.Tx
	rx       *ud.Rx
	slow     slowPath
	snapshot *ud.Snapshot
}

// Env is what an interface shares with others.
type Env struct {
	Device  *device.Device
	Journal *journal.Journal
	Log     *slog.Logger
}

// Open makes or adopts the interface, down and without carrier, and prepares
// its data path. portGUID is for the stable MAC.
func Open(cfg config.Interface, portGUID hca.GUID, env Env) (*Iface, error) {
	tap, adopted, err := link.Open(link.Spec{Name: cfg.Name, MAC: link.MACFor(portGUID, uint16(cfg.PKey), cfg.Name), MTU: initialMTU})
	if err != nil {
		return nil, err
	}
	f, err := New(cfg, tap, env)
	if err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	f.host.adopted = adopted
	return f, nil
}

// initialMTU is what a new interface has until its port is known.
const initialMTU = 1500

// New returns an interface on a TAP that the caller opened.
func New(cfg config.Interface, tap TAP, env Env) (*Iface, error) {
	f := &Iface{
		cfg:     cfg,
		log:     env.Log.With("interface", cfg.Name),
		host:    host{tap: tap},
		fab:     fabric{dev: env.Device, want: port.Want{Port: cfg.Port, PKey: cfg.PKey, GIDIndex: cfg.GIDIndex}, err: errStarting},
		nbrs:    newNeighbours(),
		rec:     newRecovery(env.Journal),
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
	if err := f.makePath(); err != nil {
		return nil, err
	}
	f.rec.badClient.name = cfg.Name
	f.rec.stale.pump = pump{once: f.path.tx.Discard, wake: f.path.tx.Wake}
	f.show(time.Now())
	return f, nil
}

var errStarting = errors.New("starting")

func (f *Iface) makePath() (err error) {
	p := &f.path
	p.slow, p.snapshot = newSlowPath(), &ud.Snapshot{}
	p.tx, err = ud.NewTx(ud.TxConfig{
		Slots: f.cfg.SendWRs, MaxMTU: ipoib.MaxMTU, MTU: initialMTU, Scope: port.ScopeLocal, PKey: f.cfg.PKey,
		Source: f.host.tap, SlowPath: p.slow, Peers: p.snapshot, OnFailure: f.onFailure(hca.WCSend),
	})
	if err != nil {
		return err
	}
	p.rx, err = ud.NewRx(ud.RxConfig{
		Slots: f.cfg.RecvWRs, PortMTU: hca.MaxMTU, MTU: initialMTU,
		Sink: f.host.tap, SlowPath: p.slow, Peers: p.snapshot, OnFailure: f.onFailure(hca.WCRecv),
	})
	return err
}

// Name returns the configured name.
func (f *Iface) Name() string { return f.cfg.Name }

// DeviceName returns the name of its device.
func (f *Iface) DeviceName() string { return f.cfg.Device }

// Adopted reports whether ib0 was there before.
func (f *Iface) Adopted() bool { return f.host.adopted }

// Close gives the TAP up; ib0 stays, without carrier. Run has ended or was
// never called. Harmless when repeated.
func (f *Iface) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	return f.host.tap.Close()
}

// Delete is Close, and takes ib0 away, under whatever name and in whatever
// network namespace it is now. One that is gone already is no error.
func (f *Iface) Delete() error {
	if f.closed.Swap(true) {
		return nil
	}
	return f.host.tap.Remove()
}
