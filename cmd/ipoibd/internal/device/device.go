package device

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// Opener opens the HCA, or says why not. It ends with ctx.
type Opener func(ctx context.Context) (hca.Device, error)

// Config of a device.
type Config struct {
	Name string // for people
	Open Opener
	// List tells which devices there are. Where it is nil nobody does, and a
	// device that does not open is tried from time to time.
	List Lister
	// Reset resets the HCA itself, once every process has released it: what hangs in it
	// returns, and it can be opened again whatever a zombie holds. nil: there is nothing
	// to do.
	Reset func(ctx context.Context) error
	// Complete completes a reset that was cut short, after which the HCA may be gone.
	// nil: Reset does.
	Complete func(ctx context.Context) error
	// Means names how Reset resets what other processes have open; "": it does not.
	Means string
	// Holders names the processes that have the HCA open, as far as they can be seen.
	Holders func() []string
	// Coordinator is the directory of the locks by which processes share the HCA, whose
	// identity in the list names them; "": no other process uses it.
	Coordinator string
	Users       string        // what this process is called there; "": by the device's name
	Grace       time.Duration // for users to let go; 0: qprecovery.DefaultGrace
	GiveUpAfter time.Duration // of waiting; 0: qprecovery.DefaultGiveUpAfter
	// AllowForeign takes another HCA for the one that went.
	AllowForeign bool
	Journal      *journal.Journal // nil: one that nobody reads
	Log          *slog.Logger
}

// View is what a device looks like now.
type View struct {
	Session *Session       // nil while the HCA is not open or is being let go
	Ports   []hca.PortAttr // port n at index n-1
	Err     error          // why there is no session
	GaveUp  bool           // the device is not waited for any more, until Recover
}

// sharer coordinates the resets of the HCA with the other processes that use it; see
// [resetlock.Coordinator].
type sharer interface {
	Events() <-chan resetlock.Event
	Request()
	Released(id reset.ID)
	Status() resetlock.Status
	Sharers() []string
	Close() error
}

func join(ctx context.Context, cfg resetlock.Config) (sharer, error) {
	return resetlock.Join(ctx, cfg)
}

// Device keeps one HCA open. Run owns its state; the rest reads what it
// publishes.
type Device struct {
	cfg    Config
	log    *slog.Logger
	calls  chan func(*owner) // what Run is to do
	asked  chan qprecovery.Asked
	ended  chan struct{} // closed when Run has ended
	view   atomic.Pointer[View]
	status atomic.Pointer[Status]
	shared atomic.Pointer[sharer]
	join   func(context.Context, resetlock.Config) (sharer, error)
	opens  atomic.Uint64

	zombies guard.Zombies // of this device alone, so that one HCA that hangs does not stop the recovery of others

	mu   sync.Mutex // guards subs
	subs map[chan struct{}]struct{}
}

// New returns a device that Run will open.
func New(cfg Config) *Device {
	cfg.Grace = cmp.Or(cfg.Grace, qprecovery.DefaultGrace)
	if cfg.Journal == nil {
		cfg.Journal = journal.New()
	}
	d := &Device{
		cfg: cfg, log: cfg.Log.With("device", cfg.Name),
		calls: make(chan func(*owner)), asked: make(chan qprecovery.Asked, 1),
		join: join, ended: make(chan struct{}), subs: map[chan struct{}]struct{}{},
	}
	d.view.Store(&View{Err: ErrNotOpen})
	d.status.Store(&Status{Since: time.Now()})
	return d
}

// View returns the present view.
func (d *Device) View() View { return *d.view.Load() }

// Opens returns how many sessions there have been.
func (d *Device) Opens() uint64 { return d.opens.Load() }

// Ask has the device reset, because an interface cannot help itself; it never blocks.
// Instance is that of the session that the interface uses: if that is not the one that
// is open, the request is too late and resets nothing. What is asked for while a reset is
// under way is that reset.
func (d *Device) Ask(instance uint64, reason qprecovery.Reason) {
	select {
	case d.asked <- qprecovery.Asked{Reason: reason, Gen: uint32(instance)}:
	default: // one is asked for already
	}
}

// Subscribe returns a channel that has a value whenever the view may have
// changed since the last receive, and what ends the subscription.
func (d *Device) Subscribe() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	ch <- struct{}{}
	d.mu.Lock()
	d.subs[ch] = struct{}{}
	d.mu.Unlock()
	return ch, func() {
		d.mu.Lock()
		delete(d.subs, ch)
		d.mu.Unlock()
	}
}

func (d *Device) publish(v View) {
	d.view.Store(&v)
	d.mu.Lock()
	defer d.mu.Unlock()
	for ch := range d.subs {
		select {
		case ch <- struct{}{}:
		default: // it has not read the last one yet
		}
	}
}
