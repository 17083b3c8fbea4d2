package backend

import (
	"context"
	"log/slog"
	"net/netip"

	"ipoibd/cmd/ipoibd/internal/config"
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
	// Open opens the HCA that Find returned.
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
	// Holders returns the names of the other processes that have the HCA open and that
	// this process can see; nil: it can see none.
	Holders func() []string
}

// Info describes an HCA for its status.
type Info struct {
	HCA      string       // as configured
	Kind     string       // one of the kinds below
	Underlay string       // the netdev of an HCA that is not hardware
	Reset    config.Reset // of a real HCA
	Notice   string       // a warning to the operator; empty: none
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

// Options are the parameters of New that are not configuration.
type Options struct {
	AllowFaults bool
	// OpenHCA opens an RDMA device of the kernel by its name. It returns
	// hca.ErrNoDevice if there is none, or if this program cannot open any.
	OpenHCA func(name string) (hca.Device, error)
	Log     *slog.Logger
}

// New returns the slot of the configured HCA.
func New(cfg config.Device, opts Options) (*Slot, error) {
	log := opts.Log.With("device", cfg.Name)
	var h HCA
	var err error
	if cfg.HCA == config.SoftHCA {
		h, err = newSoftHCA(cfg, log)
	} else {
		h, err = newRealHCA(cfg, opts.OpenHCA, theKernel, log)
	}
	if err != nil {
		return nil, err
	}
	return NewSlot(h, opts.AllowFaults, log), nil
}
