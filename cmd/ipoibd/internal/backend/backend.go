package backend

import (
	"context"
	"log/slog"
	"net/netip"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// HCA is what a software HCA and a real one each do in their own way. Find, Watch and
// Info are called by several goroutines, the others by one at a time.
type HCA interface {
	// Find returns the HCA that is there: hca.ErrNoDevice if there is none. Any other
	// error leaves open whether there is one.
	Find() (qprecovery.Identity, error)
	// Watch returns a channel that has a value whenever Find may return something else,
	// until ctx ends.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Open opens the HCA that Find returned.
	Open(id qprecovery.Identity) (hca.Device, error)
	// Reset resets the HCA itself, even if it is still in use. It ends with ctx.
	Reset(ctx context.Context) error
	// Complete completes a reset that another process began, after which the HCA may be
	// gone. Like Reset, it ends with ctx.
	Complete(ctx context.Context) error
	// Sharing says how processes that share the HCA coordinate its resets.
	Sharing() Sharing
	// Run does everything else that the HCA needs, until ctx ends.
	Run(ctx context.Context)
	// Info describes the HCA, open or not.
	Info() Info
	// Close releases resources that outlive an opening. It is called once the HCA
	// has been closed for good.
	Close() error
}

// Sharing is how processes that share an HCA coordinate its resets.
type Sharing struct {
	Dir   string // of the locks (package resetlock); "": the HCA is not shared
	Means string // what resets it, and breaks what others have open; "": nothing does
	// Holders names the other processes that have the HCA open, as far as they can be
	// seen; nil: none can.
	Holders func() []string
}

// Info describes an HCA for its status.
type Info struct {
	HCA      string       // as it is configured
	Kind     string       // one of those below
	Underlay string       // the netdev of an HCA that is no hardware
	Reset    config.Reset // of a real HCA
	Notice   string       // what an operator should know; empty: nothing
	// Peers are the addresses that multicast is replicated to; nil: IP multicast.
	Peers          []netip.Addr
	KnownPeersOnly bool
	Counters       []hca.Counter
}

// Kinds of HCA.
const (
	KindSoftware = "software HCA"
	KindSoftRoCE = "Soft-RoCE"
	KindHardware = "hardware"
)

// Options are what is not configuration.
type Options struct {
	AllowFaults bool
	// OpenHCA opens an RDMA device of the kernel by its name. Errors:
	// hca.ErrNoDevice, also where there is no way to open one.
	OpenHCA func(name string) (hca.Device, error)
	Log     *slog.Logger
}

// New returns the slot of the HCA that is configured.
func New(cfg config.Device, opts Options) (*Slot, error) {
	log := opts.Log.With("device", cfg.Name)
	h, err := newHCA(cfg, opts.OpenHCA, log)
	if err != nil {
		return nil, err
	}
	return NewSlot(h, opts.AllowFaults, log), nil
}

func newHCA(cfg config.Device, open func(string) (hca.Device, error), log *slog.Logger) (HCA, error) {
	if cfg.HCA == config.SoftHCA {
		return newSoftHCA(cfg, log)
	}
	return newRealHCA(cfg, open, theKernel, log)
}
