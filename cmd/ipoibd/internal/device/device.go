package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// Opener opens the HCA, or returns why it cannot. It returns early if ctx ends.
type Opener func(ctx context.Context) (hca.Device, error)

// Lister lists the HCAs that are present: either all of them, or only the present
// instances of the device. A list is read-only once it was returned.
type Lister interface {
	// Watch sends the list at once and after each change, even if the change was undone
	// in the meantime. If lists are not received in time, only the last one is kept. The
	// channel is closed when ctx ends.
	Watch(ctx context.Context) <-chan []qprecovery.Identity
	// List returns the current list. It may block until ctx ends.
	List(ctx context.Context) []qprecovery.Identity
}

// Config of a device.
type Config struct {
	Name string // for logs and errors
	// Underlay is the netdev below the HCA, for logs and errors; "": the HCA is hardware.
	Underlay string
	Open     Opener
	List     Lister
	// Reset resets the HCA itself, once every process has released it. Verbs that hang in
	// it then return, and it can be opened again whatever a zombie holds.
	Reset func(ctx context.Context) error
	// Complete finishes a reset that another process began but did not finish, which may
	// have removed the HCA. It is not called if no other process uses the HCA.
	Complete func(ctx context.Context) error
	// Means names the kind of reset if Reset affects what other processes have open; else
	// it is "".
	Means string
	// Function is the PCI function of the HCA or of the netdev below it, which the process needs that
	// completes a reset; "": none.
	Function string
	// NoReset: Reset only makes the HCA usable again; it never removes it.
	NoReset bool
	// Holders names the other processes because of which the HCA is not reset; nil: none.
	Holders func() []string
	// Coordinator is the directory of the locks that coordinate the processes sharing the
	// HCA; "" if no other process uses it.
	Coordinator string
	// Locks opens these locks; nil: [resetlock.Open].
	Locks       func(resetlock.Config) (resetlock.Sharer, error)
	Users       string        // the name of this process there; "": the device's name
	Grace       time.Duration // for users to release the HCA; 0: qprecovery.DefaultGrace
	GiveUpAfter time.Duration // of waiting; 0: qprecovery.DefaultGiveUpAfter
	// AllowForeign accepts another HCA that appears in place of the known one.
	AllowForeign bool
	Journal      *journal.Journal // nil: entries are discarded
	Log          *slog.Logger
}

// View is the state of a device that its users need.
type View struct {
	Session  *Session       // nil while the HCA is not open or is being released
	Ports    []hca.PortAttr // port n at index n-1
	Underlay string         // Config.Underlay
	Err      error          // why there is no session
	GaveUp   bool           // Run has stopped waiting for the device, until Recover
}

// Plan returns the plan of a port of the session, or why an interface cannot use the port.
func (v View) Plan(want port.Want) (port.Plan, error) {
	if int(want.Port) > len(v.Ports) {
		return port.Plan{}, fmt.Errorf("device has no port %d: %w", want.Port, hca.ErrInvalid)
	}
	plan, err := port.MakePlan(v.Ports[want.Port-1], want)
	switch {
	case v.Underlay == "":
	case errors.Is(err, port.ErrDown):
		err = fmt.Errorf("%w: %s is down, or has no carrier; bring it up: %s",
			err, v.Underlay, report.Command("ip link set %s up", v.Underlay))
	case errors.Is(err, port.ErrNoGID), errors.Is(err, port.ErrNoMTU):
		err = fmt.Errorf("netdev %s: %w", v.Underlay, err)
	}
	return plan, err
}

// Device keeps one HCA open. Run owns its state; other goroutines read what it
// publishes.
type Device struct {
	cfg       Config
	calls     chan func(*owner) // Run calls them
	asked     chan qprecovery.Asked
	ended     chan struct{} // closed when Run has ended
	public    *publisher
	owner     *owner // Run's, once it has begun
	suspended bool   // Run begins suspended
}

// New returns a device that Run will open.
func New(cfg Config) *Device {
	cfg.Grace = cmp.Or(cfg.Grace, qprecovery.DefaultGrace)
	if cfg.Journal == nil {
		cfg.Journal = journal.New()
	}
	if cfg.Locks == nil {
		cfg.Locks = func(c resetlock.Config) (resetlock.Sharer, error) { return resetlock.Open(c) }
	}
	d := &Device{
		cfg: cfg, calls: make(chan func(*owner)), asked: make(chan qprecovery.Asked, 1),
		ended: make(chan struct{}), public: &publisher{subs: map[chan struct{}]struct{}{}},
	}
	d.public.last.Store(&published{})
	d.owner = newOwner(cfg, d.calls, d.public)
	return d
}

// BeginSuspended makes Run begin suspended, as after Suspend. It is called before Run.
func (d *Device) BeginSuspended() { d.suspended = true }

// View returns the present view.
func (d *Device) View() View { return d.public.last.Load().view }

// Opens returns how many sessions have been opened.
func (d *Device) Opens() uint64 { return d.public.last.Load().opens }

// Ask requests a reset of the device, for an interface that cannot recover by itself. It
// never blocks. instance is the session that the interface uses: if a later one is
// open, the request is outdated and resets nothing. A request during a reset is merged into
// that reset.
func (d *Device) Ask(instance uint64, reason qprecovery.Reason) {
	for a := (qprecovery.Asked{Reason: reason, Gen: uint32(instance)}); ; {
		select {
		case d.asked <- a:
			return
		case waiting := <-d.asked: // of two requests, the one about the later session counts
			if waiting.Gen > a.Gen {
				a = waiting
			}
		}
	}
}

// Subscribe returns a channel that has a value whenever the view may have changed since
// the last receive, and a function that ends the subscription.
func (d *Device) Subscribe() (<-chan struct{}, func()) { return d.public.subscribe() }

// Answers returns nil once Run's goroutine has answered, also if Run has ended. While that goroutine
// hangs, Answers blocks until ctx ends, and returns its error. Any goroutine may call it.
func (d *Device) Answers(ctx context.Context) error {
	answered := make(chan struct{})
	select {
	case d.calls <- func(*owner) { close(answered) }:
		<-answered
	case <-d.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
