package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// retryOpen is how long a failed open waits for the next try, and the least time
// from one open to the next, so that a device that fails at once cannot spin.
const retryOpen = time.Second

// Opener opens the HCA, or says why not. It may block until ctx ends while it
// waits for something to appear.
type Opener func(ctx context.Context) (hca.Device, error)

// verbTimeout is how long a verb may take: one that is stuck is found within a
// second.
const verbTimeout = 800 * time.Millisecond

// Config of a device.
type Config struct {
	Name string
	Open Opener
	Log  *slog.Logger
}

// View is what a device looks like now.
type View struct {
	Session *Session       // nil while the HCA is not open or is being let go
	Ports   []hca.PortAttr // port n at index n-1
	Err     error          // why there is no session
	GaveUp  bool           // the device is not waited for any more, until Recover
}

// Device keeps one HCA open. Run owns its state; the rest reads the view.
type Device struct {
	name  string
	open  Opener
	log   *slog.Logger
	asked chan qprecovery.Reason
	view  atomic.Pointer[View]
	opens atomic.Uint64

	mu   sync.Mutex // guards subs
	subs map[chan struct{}]struct{}
}

// New returns a device that Run will open.
func New(cfg Config) *Device {
	d := &Device{
		name: cfg.Name, open: cfg.Open, log: cfg.Log.With("device", cfg.Name),
		asked: make(chan qprecovery.Reason, 1), subs: map[chan struct{}]struct{}{},
	}
	d.view.Store(&View{Err: errNotOpen})
	return d
}

var errNotOpen = errors.New("device is not open yet")

// View returns the present view.
func (d *Device) View() View { return *d.view.Load() }

// Ask has the device reset, because an interface cannot help itself; it never
// blocks. What is asked for while a reset is under way is that reset.
func (d *Device) Ask(reason qprecovery.Reason) {
	select {
	case d.asked <- reason:
	default: // one is asked for already
	}
}

// Opens returns how many sessions there have been.
func (d *Device) Opens() uint64 { return d.opens.Load() }

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

// Run keeps the HCA open until ctx ends; the users must have let go by then, or
// it waits for them.
func (d *Device) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := retryOpen
		if dev, err := d.open(ctx); err != nil {
			d.notOpen(ctx, err)
		} else {
			opened := time.Now()
			d.serve(ctx, dev)
			pause -= time.Since(opened)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// notOpen tells a new reason; the end of ctx is none.
func (d *Device) notOpen(ctx context.Context, err error) {
	last := d.View().Err
	if ctx.Err() != nil || last != nil && last.Error() == err.Error() {
		return
	}
	d.log.Error("cannot open device; trying again", "err", err, "every", retryOpen)
	d.publish(View{Err: err})
}

// serve is one session, from open to close.
func (d *Device) serve(ctx context.Context, dev hca.Device) {
	s := newSession(guard.Wrap(dev, guard.Options{VerbTimeout: verbTimeout}), d.opens.Add(1))
	attr := dev.Attr()
	d.log.Info("device open", "name", attr.Name, "node_guid", attr.NodeGUID, "instance", s.Instance)
	err := d.follow(ctx, s)
	if ctx.Err() == nil {
		d.log.Warn("device lost; waiting for its return", "err", err)
	}
	d.publish(View{Err: fmt.Errorf("device %s is lost; waiting for its return: %w", d.name, err)})
	s.drain()
	if err := s.Close(); err != nil {
		d.log.Error("close device", "err", err)
	}
}

// follow publishes the view after every event, until the device is lost.
func (d *Device) follow(ctx context.Context, s *Session) error {
	for {
		ports, err := queryPorts(s)
		if err != nil {
			return err
		}
		d.publish(View{Session: s, Ports: ports})
		ev, err := d.nextEvent(ctx, s)
		if err != nil {
			return err
		}
		s.watchers.tell(ev)
		d.log.Info("async event", "type", ev.Type.String(), "num", ev.On.Num)
		if ev.Type == hca.EventDeviceFatal {
			return fmt.Errorf("event %s: %w", ev.Type, hca.ErrIO)
		}
	}
}

// nextEvent waits for an event, or fails with what an interface asks for.
func (d *Device) nextEvent(ctx context.Context, s *Session) (hca.AsyncEvent, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case r := <-d.asked:
			cancel(fmt.Errorf("reset asked for: %v", r))
		case <-ctx.Done():
		}
	}()
	ev, err := s.NextEvent(ctx)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	<-done
	return ev, err
}

func queryPorts(s *Session) ([]hca.PortAttr, error) {
	ports := make([]hca.PortAttr, s.Attr().Ports)
	for i := range ports {
		var err error
		if ports[i], err = s.QueryPort(uint8(i + 1)); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
