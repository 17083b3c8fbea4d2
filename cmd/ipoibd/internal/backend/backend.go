package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// HCA is a software HCA or a real one. Any goroutine may call Find, Watch and Info; the other
// methods are called by one goroutine at a time.
type HCA interface {
	// Find returns the present HCA, or hca.ErrNoDevice if there is none. After any other
	// error it is unknown whether there is one.
	Find() (qprecovery.Identity, error)
	// Watch returns a channel that delivers a value whenever the result of Find may have
	// changed, until ctx ends.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Open opens the HCA that Find returned. It returns ErrBusy if that may succeed once
	// another process releases something. While one call hangs, it may be called again.
	Open(id qprecovery.Identity) (hca.Device, error)
	// Reset resets the HCA itself, even if it is still in use. It returns when ctx ends.
	Reset(ctx context.Context) error
	// Complete completes a reset that another process began, which may have removed the
	// HCA. It returns when ctx ends.
	Complete(ctx context.Context) error
	// Sharing returns how the processes that share the HCA coordinate its resets.
	Sharing() Sharing
	// Run does everything else that the HCA needs, until ctx ends.
	Run(ctx context.Context)
	// Info describes the HCA, open or not.
	Info() Info
	// Close releases the resources that an opening leaves behind. It is called after the
	// last opened device was closed.
	Close() error
}

// Sharing is how processes that share an HCA coordinate its resets.
type Sharing struct {
	Dir   string // of the locks (package resetlock); "": the HCA is not shared
	Means string // of resetting it, which breaks the openings of all processes; "": none
	// Function is the PCI function of the HCA, or of the netdev below it; "": none.
	Function string
	// NoReset: a reset only opens the HCA again, so it never removes it.
	NoReset bool
	// Holders names the other processes whose use of the HCA prevents a reset. It does not
	// block. nil: only the locks can prevent one.
	Holders func() []string
}

// Info describes an HCA for its status.
type Info struct {
	HCA      string         // its name, as configured (config.Device.HCA)
	Kind     string         // one of the kinds below
	Underlay string         // the netdev of an HCA that is not hardware
	Reset    config.Reset   // how it is reset; empty: there is no choice
	Notices  report.Notices // warnings to the operator
	// Peers are the addresses that multicast is replicated to; nil: IP multicast.
	Peers          []netip.Addr
	KnownPeersOnly bool
	Counters       []hca.Counter
}

// Kinds of HCA that a status shows (docs/status.schema.json). The backend of config.KindRDMA
// has two of them.
const (
	KindSoftware = "software HCA"
	KindSoftRoCE = "Soft-RoCE"
	KindHardware = "hardware"
)

// ErrBusy means that an HCA cannot be opened at present, because another process uses it, or
// uses a resource that it needs. It may become free.
var ErrBusy = errors.New("in use by another process")

// ErrBroken means that an HCA cannot be opened because it does not work. A reset may help.
var ErrBroken = errors.New("the device does not work")

// Options are the parameters of New that are not configuration.
type Options struct {
	AllowFaults bool
	// OpenRDMA opens an RDMA device of the kernel by its name; only config.KindRDMA uses it.
	// It returns hca.ErrNoDevice if there is none, or if this program cannot open any.
	OpenRDMA func(name string) (hca.Device, error)
	FastPath *bpf.FastPath // for software HCAs with config.Soft.FastPath
	Log      *slog.Logger
}

// backends has the backend of each config.Kind, in the order in which HCAs are listed.
var backends = []backend{
	{
		kind: config.KindSoft,
		open: func(_ context.Context, cfg config.Device, opts Options, log *slog.Logger) (HCA, error) {
			return newSoftHCA(cfg, opts.FastPath, log)
		},
		list:  func(s System) ([]Entry, error) { return []Entry{s.software()}, nil },
		names: func() []string { return []string{config.SoftHCA} },
	},
	{
		kind: config.KindRDMA,
		open: func(ctx context.Context, cfg config.Device, opts Options, log *slog.Logger) (HCA, error) {
			return newRealHCA(ctx, cfg, opts.OpenRDMA, theKernel, log)
		},
		list: System.real, names: realNames, storage: true,
	},
}

// backend is a row of backends.
type backend struct {
	kind    config.Kind
	open    func(ctx context.Context, cfg config.Device, opts Options, log *slog.Logger) (HCA, error)
	list    func(System) ([]Entry, error) // with whatever keeps an HCA from being used
	names   func() []string               // of the present HCAs, without opening any
	storage bool                          // a disk of this host may be reached through it
}

// find returns the backend of an HCA with this name, or the zero backend.
func find(name string) backend {
	kind := config.KindOf(name)
	if i := slices.IndexFunc(backends, func(b backend) bool { return b.kind == kind }); i >= 0 {
		return backends[i]
	}
	return backend{}
}

// New returns the slot of the configured HCA. It may wait for other processes that reset the HCA,
// until ctx ends.
func New(ctx context.Context, cfg config.Device, opts Options) (*Slot, error) {
	log := opts.Log.With("device", cfg.Name)
	b := find(cfg.HCA)
	if b.open == nil {
		return nil, fmt.Errorf("no backend opens an HCA named %q: %w", cfg.HCA, hca.ErrInvalid)
	}
	h, err := b.open(ctx, cfg, opts, log)
	if err != nil {
		return nil, err
	}
	return NewSlot(h, opts.AllowFaults, log), nil
}

// Names returns what config.Device.HCA can be on this host.
func Names() (names []string) {
	for _, b := range backends {
		names = append(names, b.names()...)
	}
	return names
}

// UnlockedLevel is the level of the message that memory cannot be locked: a warning only if a disk of this host may be
// reached through one of the HCAs. The daemon may then wait for a disk that waits for it.
func UnlockedLevel(devices []config.Device) slog.Level {
	if slices.ContainsFunc(devices, func(d config.Device) bool { return find(d.HCA).storage }) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
