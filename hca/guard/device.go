package guard

import (
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// Options bound what a backend that hangs may cost.
type Options struct {
	// VerbTimeout is how long a verb may take; 1 s when 0.
	VerbTimeout time.Duration
	// AHTimeout is how long creating an address handle may take, which waits
	// for the neighbour; 5 s when 0.
	AHTimeout time.Duration
	// HostTimeout is how long verbs may take that wait for this machine besides the
	// device: registering memory, which finds and pins pages, and query_port, for which
	// drivers of RoCE devices take the kernel's rtnl lock (ib_get_eth_speed of
	// drivers/infiniband/core/verbs.c), as all changes of interfaces do; 5 s when 0.
	HostTimeout time.Duration
	// AHStuck is how long a peer can delay the creation of an address handle at most,
	// far beyond any resolution; 1 minute when 0. A creation that takes longer counts
	// as stuck in the device.
	AHStuck time.Duration
	// MaxStuck is how many verbs may be in the backend at once, and how many
	// that create an address handle besides; 16 when 0.
	MaxStuck int
	// Zombies counts the device from its failure until the backend has released it,
	// together with the other instances of its HCA; nil: it counts this device alone.
	Zombies *Zombies
}

// Defaults of Options. Resolving a neighbour takes about a second, and the
// kernel tries more than once; some thousand pages take a second on a machine
// that is slow, or short of memory.
const (
	DefaultVerbTimeout = time.Second
	DefaultAHTimeout   = 5 * time.Second
	DefaultHostTimeout = 5 * time.Second
	DefaultAHStuck     = time.Minute
	DefaultMaxStuck    = 16
)

func (o Options) withDefaults() Options {
	if o.VerbTimeout <= 0 {
		o.VerbTimeout = DefaultVerbTimeout
	}
	if o.AHTimeout <= 0 {
		o.AHTimeout = DefaultAHTimeout
	}
	if o.HostTimeout <= 0 {
		o.HostTimeout = DefaultHostTimeout
	}
	if o.AHStuck <= 0 {
		o.AHStuck = DefaultAHStuck
	}
	if o.MaxStuck <= 0 {
		o.MaxStuck = DefaultMaxStuck
	}
	if o.Zombies == nil {
		o.Zombies = new(Zombies)
	}
	return o
}

// Device is a guarded [hca.Device].
type Device struct {
	inner hca.Device
	opts  Options
	attr  hca.DeviceAttr

	failure atomic.Pointer[Failure]
	dead    chan struct{} // closed on failure
	slots   chan struct{} // one for each verb in the backend
	peers   chan struct{} // likewise, for verbs that wait for a peer
	counts  counts
	events  events

	self     object
	released chan struct{} // closed when the backend's device is

	mu       sync.Mutex
	registry registry
	graves   graves
	inside   int  // calls in the backend, plus 1 until it has released the device
	zombie   bool // counted in Options.Zombies
}

var (
	_ hca.Device        = (*Device)(nil)
	_ hca.WireReporter  = (*Device)(nil)
	_ hca.StrayReporter = (*Device)(nil)
)

// Wrap guards a device, which is the guard's own from then on.
func Wrap(dev hca.Device, opts Options) *Device {
	d := &Device{inner: dev, opts: opts.withDefaults(), attr: dev.Attr()}
	d.dead, d.released = make(chan struct{}), make(chan struct{})
	d.slots, d.peers = make(chan struct{}, d.opts.MaxStuck), make(chan struct{}, d.opts.MaxStuck)
	d.registry.init()
	d.inside = 1
	d.self = object{
		dev: d, verb: "close_device", close: dev.Close, onGone: func() { close(d.released); d.leave() },
	}
	return d
}

// Attr implements [hca.Device]; it answers in the failed state too.
func (d *Device) Attr() hca.DeviceAttr { return d.attr }

// QueryPort implements [hca.Device].
func (d *Device) QueryPort(port uint8) (hca.PortAttr, error) {
	return ask(d, verb{name: "query_port", patience: d.opts.HostTimeout}, func() (hca.PortAttr, error) { return d.inner.QueryPort(port) })
}

// WireBlocked implements [hca.WireReporter].
func (d *Device) WireBlocked() uint64 { return hca.WireBlockedOf(d.inner) }

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() (hca.Strays, bool) { return hca.StraysOf(d.inner) }

// Close implements [hca.Device]. In the failed state it never fails: it waits,
// at most Options.VerbTimeout, until the backend has released everything, so
// that the device can be opened again.
func (d *Device) Close() error {
	err := d.self.release()
	if err != nil || d.Err() == nil {
		return err
	}
	p := newPatience(d.opts.VerbTimeout, 0)
	defer p.stop()
	for {
		select {
		case <-d.released:
			return nil
		case <-p.timer.C:
			if p.spent() {
				return nil
			}
		}
	}
}

// closed reports whether Close was called and succeeded.
func (d *Device) closed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.self.life != lifeOpen
}
