package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"ipoibd/qprecovery/reset"
)

// Config describes a device and this process's share in it.
type Config struct {
	// Device names the device for people.
	Device string
	// Name names this process to the others, for people: the interfaces that it
	// has on the device. Empty: the name of the device.
	Name string
	// Path is the UNIX socket at which those who share the device meet. Empty:
	// nobody else shares it, and a reset waits for nobody but this process.
	Path string
	// Grace is how long a reset waits for who is not ready, Limit how long the
	// reset of the device itself may take. Zero: the defaults of package reset.
	Grace, Limit time.Duration
	// Settle is how long a new host lets the clients of an earlier one come back
	// before it resets. Zero: the default of package reset. Without a path there
	// are none.
	Settle time.Duration
	// Reset resets the device itself, without the clients named, which were not
	// ready and are all of this process. It is called in the hosting process only,
	// on a goroutine of its own, and never while an earlier call is under way. ctx
	// ends when Limit is over or the coordinator closes; Close waits for the return.
	Reset func(ctx context.Context, without []reset.Member) error
	// Waiting is told what Join waits for, and never after Join has returned. It
	// must not block. Nil: nobody is told.
	Waiting func(why error)
	Log     *slog.Logger
}

// Coordinator is this process's client of a device, and its server where this
// process hosts. All methods may be called from any goroutine.
type Coordinator struct {
	conf   Config
	log    *slog.Logger
	events chan Event
	joined chan struct{} // closed when the device may be opened

	kick      chan struct{} // has a value when one of the next two may have changed
	requested atomic.Bool
	released  atomic.Uint64 // the last reset that the user is ready for

	status atomic.Pointer[Status]
	stop   context.CancelFunc
	done   chan struct{} // closed when all goroutines have ended
}

// Join registers with those who share the device, and returns when it may be
// opened, which is at once unless a reset is pending. It ends with ctx. Where
// the socket or its lock file cannot be used the error says why; [ErrNotSocket]
// where something else lies at the path.
func Join(ctx context.Context, conf Config) (*Coordinator, error) {
	m, err := openMeeting(conf.Path)
	if err != nil {
		return nil, fmt.Errorf("join those who share %s: %w", conf.Device, err)
	}
	c := start(conf, m).Coordinator
	select {
	case <-c.joined:
		return c, nil
	case <-ctx.Done():
		err := fmt.Errorf("join those who share %s: %w", conf.Device, context.Cause(ctx))
		if last := c.Status().Err; last != nil {
			err = fmt.Errorf("%w: %w", err, last)
		}
		_ = c.Close() // the reason is why it ended
		return nil, err
	}
}

// start begins to run. It takes over m.
func start(conf Config, m *meeting) *owner {
	conf.Name = cmp.Or(conf.Name, conf.Device)
	ctx, stop := context.WithCancel(context.Background())
	c := &Coordinator{
		conf:   conf,
		log:    conf.Log.With("device", conf.Device),
		events: make(chan Event),
		joined: make(chan struct{}),
		kick:   make(chan struct{}, 1),
		stop:   stop,
		done:   make(chan struct{}),
	}
	c.status.Store(&Status{})
	o := newOwner(ctx, c, m)
	go o.run()
	return o
}

// Events are what happens to the device, in order and with none lost however
// late they are read. The channel is closed by Close.
func (c *Coordinator) Events() <-chan Event { return c.events }

// Request asks for a reset of the device; while one is pending, that is the one.
// It never blocks.
func (c *Coordinator) Request() {
	c.requested.Store(true)
	c.wake()
}

// Released says that this process holds nothing of the device, as the reset id
// wants it. It never blocks.
func (c *Coordinator) Released(id reset.ID) {
	c.released.Store(uint64(id))
	c.wake()
}

func (c *Coordinator) wake() {
	select {
	case c.kick <- struct{}{}:
	default: // it has not looked yet
	}
}

// Status returns the present state.
func (c *Coordinator) Status() Status { return *c.status.Load() }

// Close says goodbye to the others and ends all goroutines; a host removes its
// socket. The user has let go of the device before. It waits for the others to
// take what was said to them, at most closeTime, and for Config.Reset to return.
func (c *Coordinator) Close() error {
	c.stop()
	<-c.done
	return nil
}
