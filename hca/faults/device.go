package faults

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
)

// Options are the options of a wrapper.
type Options struct {
	// OnUnplug is called when Unplug fires, on the goroutine that caused it to fire.
	OnUnplug func()
	// Forever releases the verbs that VerbHangsForever blocks when a test closes it.
	// If it is nil, they never return.
	Forever <-chan struct{}
}

// Device is an [hca.Device] into which faults can be injected.
type Device struct {
	hca.Device
	opts Options

	busy  atomic.Bool // a fault is pending, or affects a QP
	gone  atomic.Bool // posts fail, and so do verbs that allocate, change or query
	mute  atomic.Bool // no completions are delivered
	queue eventQueue

	mu    sync.Mutex
	plan  plan
	port  port
	qps   map[hca.QPN]*QP
	hangs chan struct{} // closed by Release
}

var (
	_ hca.Device        = (*Device)(nil)
	_ hca.WireReporter  = (*Device)(nil)
	_ hca.StrayReporter = (*Device)(nil)
	_ hca.PathRefuter   = (*Device)(nil)
)

// port holds the false reports about the device's ports.
type port struct{ down, noGID, noPKey bool }

// Wrap returns a device into which faults can be injected. The wrapper then owns dev.
func Wrap(dev hca.Device, opts Options) *Device {
	d := New(opts)
	d.Device = dev
	return d
}

// New returns a wrapper without a device. Until Open has succeeded, only Inject, Planned, Clear and
// Release may be called.
func New(opts Options) *Device {
	return &Device{opts: opts, qps: map[hca.QPN]*QP{}, hangs: make(chan struct{})}
}

// Open opens the device with open, unless a fault of open_device fires. One that hangs ends with
// ErrIO. The wrapper then owns the device.
func (d *Device) Open(open func() (hca.Device, error)) error {
	if d.hang(openDevice) {
		return wrap(openDevice, hca.ErrIO)
	}
	err := d.enter(openDevice)
	if err == nil {
		d.Device, err = open()
	}
	return err
}

// Inject adds a pending fault, or applies it immediately if its occasion is Inject itself.
// Errors: hca.ErrInvalid.
func (d *Device) Inject(f Fault) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := d.add(f); err != nil {
		return err
	}
	if f.Kind.instant() && f.After == 0 {
		for d.fireOne(f.Kind) {
			d.apply(f.Kind)
		}
	}
	return nil
}

func (d *Device) add(f Fault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.recount()
	return d.plan.add(f)
}

// Planned returns the pending faults, with the remaining values of After and Count.
func (d *Device) Planned() []Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.plan.list)
}

// Clear cancels the pending faults. The effects of those that have fired remain.
func (d *Device) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan.list = nil
	d.recount()
}

// Release lets the verbs that VerbHangs blocks return, as the verbs of hardware do after a
// reset.
func (d *Device) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.hangs)
	d.hangs = make(chan struct{})
}

// recount sets busy. d.mu is held.
func (d *Device) recount() {
	busy := len(d.plan.list) > 0
	for _, q := range d.qps {
		busy = busy || q.affected()
	}
	d.busy.Store(busy)
	d.holdFast()
}

func (d *Device) fireOne(k Kind) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.recount()
	return d.plan.fire(k, "")
}

// apply applies an instant fault.
func (d *Device) apply(k Kind) {
	dev, first := hca.ObjectID{Kind: hca.KindDevice}, hca.ObjectID{Kind: hca.KindPort, Num: 1}
	switch k {
	case Unplug:
		d.mute.Store(true)
		fallthrough
	case DeviceFatal:
		d.gone.Store(true)
		d.queue.put(hca.AsyncEvent{Type: hca.EventDeviceFatal, On: dev})
	case PortDown:
		d.report(func(p *port) { p.down = true }, hca.AsyncEvent{Type: hca.EventPortErr, On: first})
	case PortUp:
		d.report(func(p *port) { p.down = false }, hca.AsyncEvent{Type: hca.EventPortActive, On: first})
	case GIDChange:
		d.report(func(p *port) { p.noGID = !p.noGID }, hca.AsyncEvent{Type: hca.EventGIDChange, On: first})
	case PKeyChange:
		d.report(func(p *port) { p.noPKey = !p.noPKey }, hca.AsyncEvent{Type: hca.EventPKeyChange, On: first})
	default: // not instant
	}
	d.mu.Lock()
	d.holdFast()
	d.mu.Unlock()
	if k == Unplug && d.opts.OnUnplug != nil {
		d.opts.OnUnplug()
	}
}

func (d *Device) report(change func(*port), ev hca.AsyncEvent) {
	d.mu.Lock()
	change(&d.port)
	d.mu.Unlock()
	d.queue.put(ev)
}

// Attr implements [hca.Device]. Any verb may be made to hang.
func (d *Device) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.NeverBlocks = false
	return a
}

// QueryPort implements [hca.Device].
func (d *Device) QueryPort(num uint8) (hca.PortAttr, error) {
	if err := d.enter("query_port"); err != nil {
		return hca.PortAttr{}, err
	}
	a, err := d.Device.QueryPort(num)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.port.falsify(&a)
	return a, err
}

func (p *port) falsify(a *hca.PortAttr) {
	if p.down {
		a.State = hca.PortDown
	}
	if i := slices.IndexFunc(a.GIDs, func(g hca.GIDEntry) bool { return !g.GID.IsZero() }); p.noGID && i >= 0 {
		a.GIDs[i] = hca.GIDEntry{Type: a.GIDs[i].Type}
	}
	if p.noPKey && len(a.PKeys) > 0 {
		a.PKeys[0] = 0
	}
}

// Counters implements [hca.Device]. It returns the backend's counters, and how often each
// kind of fault has fired.
func (d *Device) Counters() []hca.Counter {
	out := d.Device.Counters()
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, n := range d.plan.fired {
		if n > 0 {
			out = append(out, hca.Counter{Name: "fault_" + names[k], Kind: hca.CountTotal, Value: n})
		}
	}
	return out
}

// WireBlocked implements [hca.WireReporter].
func (d *Device) WireBlocked() uint64 { return hca.WireBlockedOf(d.Device) }

// RefutePath implements [hca.PathRefuter].
func (d *Device) RefutePath(to netip.Addr, payload int) { hca.RefutePath(d.Device, to, payload) }

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() (hca.Strays, bool) { return hca.StraysOf(d.Device) }

// NotifyStrays implements [hca.StrayReporter].
func (d *Device) NotifyStrays(f func()) (stop func()) {
	return hca.NotifyStraysOf(d.Device, f)
}

// Close implements [hca.Device].
func (d *Device) Close() error {
	d.hang("close_device")
	return d.Device.Close()
}
