package guard

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// Options bound the time and the resources that a hanging backend can cost.
type Options struct {
	// VerbTimeout is how long a verb may take; 0 means 1 s.
	VerbTimeout time.Duration
	// AHTimeout is how long creating an address handle may take, including the
	// resolution of the neighbour; 0 means 5 s.
	AHTimeout time.Duration
	// HostTimeout is how long verbs may take that wait for this machine in addition to
	// the device: registering memory, which finds and pins pages, and query_port,
	// for which drivers of RoCE devices take the kernel's rtnl lock (ib_get_eth_speed of
	// drivers/infiniband/core/verbs.c), as all changes of interfaces do, and as the software HCA
	// does to join groups; 0 means 5 s.
	HostTimeout time.Duration
	// HostStuck is an upper bound for the delay that this machine can cause in verbs that wait for
	// the rtnl lock, such as by a cleanup of many network namespaces under the rtnl lock; 0 means 1 minute.
	// After each HostTimeout the device must answer another verb, or the verb is stuck.
	HostStuck time.Duration
	// OpenTimeout is how long opening the device may take, which pins memory and waits for
	// the initialization of the driver; 0 means 10 s.
	OpenTimeout time.Duration
	// AHStuck is an upper bound for the delay that a peer can cause in the creation
	// of an address handle, far above the time of any resolution; 0 means 1 minute. A
	// creation that takes longer counts as stuck in the device.
	AHStuck time.Duration
	// MaxStuck is how many verbs may be in the backend at once, in addition how many that
	// create an address handle, and how many that may wait for the rtnl lock; 0 means 16.
	MaxStuck int
	// Zombies counts this device from its failure until the backend has released it.
	// The instances of an HCA share it. If it is nil, the device has its own.
	Zombies *Zombies
}

// Defaults of Options. Resolving a neighbour takes about a second, and the kernel
// tries more than once. Pinning some thousand pages takes a second on a machine that
// is slow or short of memory.
const (
	DefaultVerbTimeout = time.Second
	DefaultAHTimeout   = 5 * time.Second
	DefaultHostTimeout = 5 * time.Second
	DefaultHostStuck   = time.Minute
	DefaultOpenTimeout = 10 * time.Second
	DefaultAHStuck     = time.Minute
	DefaultMaxStuck    = 16
)

func (o Options) withDefaults() Options {
	o.VerbTimeout = cmp.Or(o.VerbTimeout, DefaultVerbTimeout)
	o.AHTimeout = cmp.Or(o.AHTimeout, DefaultAHTimeout)
	o.HostTimeout = cmp.Or(o.HostTimeout, DefaultHostTimeout)
	o.HostStuck = cmp.Or(o.HostStuck, DefaultHostStuck)
	o.OpenTimeout = cmp.Or(o.OpenTimeout, DefaultOpenTimeout)
	o.AHStuck = cmp.Or(o.AHStuck, DefaultAHStuck)
	o.MaxStuck = cmp.Or(o.MaxStuck, DefaultMaxStuck)
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
	slots   chan struct{} // one element for each verb in the backend
	peers   chan struct{} // the same for verbs that wait for a peer
	hosts   chan struct{} // the same for verbs that wait for a lock of the host
	counts  counts

	fatalDelivered atomic.Bool // NextEvent has returned DEVICE_FATAL
	hung           atomic.Bool // a call was abandoned because it did not return in time

	self     object
	released chan struct{} // closed when the backend has released the device

	mu        sync.Mutex // guards what follows
	cqs       map[*CQ]struct{}
	ids       map[hca.ObjectID]hca.ObjectID // of CQs and QPs, from the backend's ID to the guard's
	releases  []*object                     // to close in the backend: closed for their callers, and not in use
	releasing bool                          // releaseQueued runs
	inside    int                           // calls in the backend, plus 1 until it has released the device
	hanging   int                           // of these, those that were abandoned with AbandonCall
	kept      []*object                     // to close in the backend once no call hangs
	zombie    bool                          // counted in Options.Zombies
}

// counts are the guard's own counters.
type counts struct {
	staleEvents    atomic.Uint64 // events about objects that no longer exist
	abandoned      atomic.Uint64 // verbs that had not returned when their caller did
	stuck          atomic.Int64  // abandoned verbs that have not returned
	late           atomic.Uint64 // abandoned verbs that have returned
	releasesFailed atomic.Uint64 // releases that the backend of a failed device refused
}

var (
	_ hca.Device        = (*Device)(nil)
	_ hca.WireReporter  = (*Device)(nil)
	_ hca.StrayReporter = (*Device)(nil)
)

// Wrap returns a guarded device, which then owns dev.
func Wrap(dev hca.Device, opts Options) *Device {
	d := &Device{
		inner: dev, opts: opts.withDefaults(), attr: dev.Attr(),
		cqs: map[*CQ]struct{}{}, ids: map[hca.ObjectID]hca.ObjectID{},
		inside: 1,
	}
	d.dead, d.released = make(chan struct{}), make(chan struct{})
	d.slots = make(chan struct{}, d.opts.MaxStuck)
	d.peers = make(chan struct{}, d.opts.MaxStuck)
	d.hosts = make(chan struct{}, d.opts.MaxStuck)
	d.self = object{
		dev: d, verb: closeDevice, close: dev.Close, onGone: func() { close(d.released); d.leave() },
	}
	return d
}

// Attr implements [hca.Device]. It works in the failed state too.
func (d *Device) Attr() hca.DeviceAttr { return d.attr }

// QueryPort implements [hca.Device].
func (d *Device) QueryPort(port uint8) (hca.PortAttr, error) {
	v := verb{name: "query_port"}
	if !d.attr.NeverBlocks {
		v.patience, v.host = d.opts.HostTimeout, true
	}
	return ask(d, v, func() (hca.PortAttr, error) { return d.inner.QueryPort(port) })
}

// WireBlocked implements [hca.WireReporter].
func (d *Device) WireBlocked() uint64 { return hca.WireBlockedOf(d.inner) }

// RefutePath implements [hca.PathRefuter].
func (d *Device) RefutePath(to netip.Addr, payload int) { hca.RefutePath(d.inner, to, payload) }

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() (hca.Strays, bool) { return hca.StraysOf(d.inner) }

// NotifyStrays implements [hca.StrayReporter].
func (d *Device) NotifyStrays(f func()) (stop func()) { return hca.NotifyStraysOf(d.inner, f) }

// Close implements [hca.Device]. In the failed state it always succeeds. It then waits
// until the backend has released everything, so that the device can be opened again, but
// not longer than Options.VerbTimeout.
func (d *Device) Close() error {
	err := d.self.release()
	if err != nil || d.Err() == nil {
		return err
	}
	p := newPatience(d.opts.VerbTimeout)
	defer p.timer.Stop()
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

// Counters implements [hca.Device]. It returns the backend's counters, then the guard's.
func (d *Device) Counters() []hca.Counter {
	c := &d.counts
	return append(d.inner.Counters(),
		hca.Counter{Name: "guard_stale_events", Kind: hca.CountTotal, Value: c.staleEvents.Load()},
		hca.Counter{Name: "guard_verbs_abandoned", Kind: hca.CountError, Value: c.abandoned.Load()},
		hca.Counter{Name: "guard_verbs_stuck", Kind: hca.CountGauge, Value: uint64(c.stuck.Load())},
		hca.Counter{Name: "guard_late_answers", Kind: hca.CountTotal, Value: c.late.Load()},
		hca.Counter{Name: "guard_releases_failed", Kind: hca.CountError, Value: c.releasesFailed.Load()},
		hca.Counter{Name: "guard_zombies", Kind: hca.CountGauge, Value: uint64(d.opts.Zombies.n.Load())},
	)
}
