package iface

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/port"
)

// Errors that end an interface.
var (
	ErrDeleted = errors.New("another process deleted the interface, or its container exited; " +
		"restart the daemon, or reload its configuration file, to recreate it")
	ErrMoved = errors.New("the interface was moved to another network namespace, " +
		"where this daemon may not follow it: " +
		"run it with --follow, CAP_SYS_ADMIN and CAP_NET_BROADCAST, or in that namespace")
)

// Each lane has a queue of the TAP, and there is a steering program for their number, so the bounds are
// equal: otherwise a difference is negative, and the compiler refuses it.
const (
	_ = uint(bpf.MaxQueues - config.MaxLanes)
	_ = uint(config.MaxLanes - bpf.MaxQueues)
	_ = uint(link.MaxQueues - config.MaxLanes)
	_ = uint(config.MaxLanes - link.MaxQueues)
)

// Iface is one interface. Run's goroutine owns everything except what the pumps and the
// workers use.
type Iface struct {
	cfg config.Interface
	log *slog.Logger

	host    host
	lanes   *lanes
	fabric  fabric
	rec     recovery
	nbrs    neighbours
	slow    slowPath
	fast    *fast
	reports pathReports

	before Before // what was counted before this one

	programs programs
	shown    shown
	queries  chan func()
	ending   context.Context // ends when Run is about to end, which may wait for the kernel's rtnl lock
	ends     func()
	done     chan struct{} // closed when Run has ended
	end      error         // of Run, once done is closed
}

// Env holds what interfaces share.
type Env struct {
	Device   *device.Device
	Journal  *journal.Journal
	Log      *slog.Logger
	Programs *bpf.Programs
	NoBPF    *sync.Once    // logs that eBPF is not available, once for all interfaces
	FastPath *bpf.FastPath // that the device uses; nil: none

	Lanes    int  // of the device
	Runtime  bool // the interface was added at run time
	Existing bool // for Open: it must exist, left by an earlier daemon

	Namespace *os.File // for Open: the configured network namespace, if it is open already; the caller closes it
}

// Open creates or adopts the interface, down and without carrier, and prepares its data
// path. The MAC is derived from portGUID.
func Open(cfg config.Interface, portGUID hca.GUID, env Env) (*Iface, error) {
	tap, adopted, err := link.Open(link.Spec{
		Name: cfg.NetdevName(), Netns: cfg.Netns, Namespace: env.Namespace, Existing: env.Existing,
		MAC: link.MACFor(portGUID, uint16(cfg.PKey), cfg.Name), MTU: initialMTU, Queues: env.Lanes,
	})
	if err != nil {
		return nil, err
	}
	f, err := construct(cfg, tap, State{Adopted: adopted}, env)
	if err != nil {
		return nil, err
	}
	f.host.assignment.bringUp(cfg.Up)
	return f, nil
}

// Taken returns an error if another interface than one of ipoibd's has the name that a configuration gives ib0 in the
// daemon's namespace, so that Open would fail.
func Taken(cfg config.Interface) error {
	if cfg.Netns != "" {
		return nil
	}
	if err := link.Available(cfg.NetdevName()); errors.Is(err, link.ErrNameTaken) {
		return err
	}
	return nil
}

// Rebuild returns an interface with another configuration, perhaps on another device, in place of one
// whose Run has ended. It takes over the TAP, so that ib0 stays as it is, also under another name and
// in another network namespace; and the peers and counters, but not the peers if the device, the port,
// the P_Key or the configured GID changes. Only a change of the number of lanes, or of the place that the
// configuration gives ib0, needs another TAP, by Close or Delete, and Open. After an error the TAP is
// closed. f must not be used any more, except for its Status.
func (f *Iface) Rebuild(cfg config.Interface, env Env) (*Iface, error) {
	if env.Lanes != len(f.lanes.all) {
		err := fmt.Errorf("%d lanes on a TAP with %d queues", env.Lanes, len(f.lanes.all))
		return nil, errors.Join(err, f.Close())
	}
	if err := f.programs.detach(f.host.tap); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s := f.state(link.Counters{}) // the TAP's own counts go on
	s.Ladder = qprecovery.Handed{}
	sameGID := cfg.GID == f.cfg.GID && reflect.DeepEqual(cfg.GIDIndex, f.cfg.GIDIndex)
	if env.Device != f.fabric.dev || cfg.Port != f.cfg.Port || cfg.PKey != f.cfg.PKey || !sameGID {
		s.Peers = nil // others are on that link, or reached from that address
	}
	f.programs.close()
	next, err := construct(cfg, f.host.tap, s, env)
	if err != nil {
		return nil, err
	}
	if cfg.MTU != f.cfg.MTU {
		next.host.mtu.configure(cfg.MTU)
	}
	next.host.assignment.bringUp(cfg.Up && !f.cfg.Up) // the operator may have set it down since
	return next, nil
}

// Elsewhere reports whether ib0 was renamed or moved to another network namespace, so that Open
// would not find it.
func (f *Iface) Elsewhere() bool { return f.host.tap.Elsewhere() }

// initialMTU is the MTU of a new interface until its port is known.
const initialMTU = 1500

// lentMaxHeard bounds the heard peers of an interface that was added at run time, and so the memory,
// to 2 MiB each: a node has one for each of its pods, and a message to the group reaches all of them.
const lentMaxHeard = 1024

// tableConfig returns the configuration of an interface's table of peers.
func tableConfig(cfg *config.Interface, runtime bool) neigh.Config {
	conf := neigh.Config{DHCP: map[string]neigh.DHCPForm{
		config.DHCPEthernet: neigh.DHCPEthernet, config.DHCPRFC4390: neigh.DHCPRFC4390,
	}[cfg.DHCP]}
	if runtime {
		conf.MaxPeers = lentMaxHeard + neigh.DefaultMaxPeers - neigh.DefaultMaxHeard
		conf.MaxHeard = lentMaxHeard
	}
	return conf
}

// construct returns an interface on a TAP, with a lane for each queue, that continues from a state. After an error the
// TAP is closed.
func construct(cfg config.Interface, tap TAP, s State, env Env) (*Iface, error) {
	want := port.Want{Port: cfg.Port, PKey: cfg.PKey, GIDIndex: cfg.GIDIndex}
	var noGID error
	if cfg.GID != "" {
		if want.GID, noGID = netip.ParseAddr(cfg.GID); noGID != nil {
			noGID = fmt.Errorf("GID: %w", noGID)
		}
	}
	assigns, err := assignmentOf(cfg)
	known := &ud.Snapshot{}
	slow := newSlowPath(known)
	fastPath := &fast{log: env.Log.With("interface", cfg.Name)}
	ls, noLanes := newLanes(cfg, tap.Queues(), slow, known, fastPath.setHold)
	if err := errors.Join(noGID, err, noLanes); err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	f := &Iface{
		cfg: cfg, log: env.Log.With("interface", cfg.Name), lanes: ls, slow: slow, fast: fastPath, before: s.Before,
		queries: make(chan func()), done: make(chan struct{}),
	}
	f.ending, f.ends = context.WithCancel(context.Background())
	f.host = host{
		log: f.log, tap: tap, lanes: ls, worker: newWorker(), assignment: assignment{want: assigns},
		adopted: s.Adopted, mtu: s.MTU, rebuilt: s.MTU.Set != 0, // else ib0 was never examined
		monitor: monitor{every: inspectEvery, wantCarrier: s.Carrier},
	}
	if cfg.Netns != "" {
		f.host.monitor.every = inspectSoon
	}
	f.host.checkSources()
	f.fabric = fabric{
		name: cfg.Name, dev: env.Device, tap: tap, lanes: ls, want: want, onTAP: s.Offloads, qpn: s.QPN,
		worker: newWorker(), badClient: badClient{name: cfg.Name},
		member: newMembership(f.log),
	}
	f.rec = recovery{
		log: f.log, journal: env.Journal, fabric: &f.fabric, lanes: ls, setCarrier: f.host.setCarrier,
		ladder: qprecovery.InheritLadder(time.Now(), s.Ladder), err: errors.New("starting"),
	}
	f.nbrs = newNeighbours(f.log, tap, ls, &f.fabric.member, f.fast, tableConfig(&cfg, env.Runtime), neigh.Restored{Peers: s.Peers, Stations: s.Stations})
	if cfg.EBPF {
		f.programs.attach(env, tap, len(ls.all), f.log)
	}
	if env.FastPath != nil {
		f.fabric.wantsFast, f.fabric.noFast = true, noFastPath(&cfg, f.programs.lacking())
		f.host.fastPath = env.FastPath
	}
	f.programs.observe(tap, len(ls.all), f.fast.posted)
	f.show(time.Now())
	return f, nil
}

// noFastPath returns why an interface cannot have a fast path, or nil. lacking is why it has no eBPF programs, or empty.
func noFastPath(cfg *config.Interface, lacking string) error {
	const why = "the fast path needs the programs of the interface, which keep the frames of a flow on one lane: "
	switch {
	case cfg.Netns != "":
		return errors.New("the interface is lent to a network namespace (netns)")
	case !cfg.EBPF:
		return errors.New(why + "they are off (ebpf)")
	case lacking != "":
		return errors.New(why + lacking)
	}
	return nil
}

// Name returns the configured name.
func (f *Iface) Name() string { return f.cfg.Name }

// Adopted reports whether ib0 existed before.
func (f *Iface) Adopted() bool { return f.host.adopted }

// Configured reports whether the host has configured ib0: it has an address other than a link-local
// one, a master or another name. If its state cannot be read, Configured returns true.
func (f *Iface) Configured() bool {
	s, err := f.host.tap.State()
	return err != nil || s.Name != f.cfg.NetdevName() || s.Master != 0 ||
		slices.ContainsFunc(s.Addrs, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() })
}

// Close closes the TAP; ib0 stays, without carrier. Run must have ended, or never have been
// called. Idempotent.
func (f *Iface) Close() error {
	err := f.host.tap.Close()
	f.programs.close()
	return err
}

// Delete is called instead of Close, and removes ib0, whatever its name and network namespace
// are now. It succeeds if ib0 is already gone.
func (f *Iface) Delete() error {
	err := f.host.tap.Remove()
	f.programs.close()
	return err
}

// Answers returns nil once Run's goroutine has answered, also if Run has ended or is about to. While that goroutine
// hangs, Answers blocks until ctx ends, and returns its error. Any goroutine may call it.
func (f *Iface) Answers(ctx context.Context) error {
	answered := make(chan struct{})
	select {
	case f.queries <- func() { close(answered) }:
		<-answered
	case <-f.ending.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
