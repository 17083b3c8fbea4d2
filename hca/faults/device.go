package faults

import (
	"slices"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
)

// Options of a wrapper.
type Options struct {
	// OnUnplug is called when Unplug strikes, on the goroutine that it struck.
	OnUnplug func()
	// Forever, once closed, releases the verbs that VerbHangsForever holds, for
	// tests; nil: they never return.
	Forever <-chan struct{}
}

// Device is an [hca.Device] into which faults can be injected.
type Device struct {
	hca.Device
	opts Options

	busy  atomic.Bool // a fault is planned, or a QP suffers from one
	gone  atomic.Bool // posts and verbs that allocate or change fail
	mute  atomic.Bool // nothing completes
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
)

// port is what the device reports wrongly of its ports.
type port struct{ down, noGID, noPKey bool }

// Wrap makes a device faulty, on command. It is the wrapper's own from then on.
func Wrap(dev hca.Device, opts Options) *Device {
	return &Device{Device: dev, opts: opts, qps: map[hca.QPN]*QP{}, hangs: make(chan struct{})}
}

// Inject plans a fault, or does it at once. Errors: hca.ErrInvalid.
func (d *Device) Inject(f Fault) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := d.add(f); err != nil {
		return err
	}
	if f.Kind.instant() && f.After == 0 {
		for d.strikeOne(f.Kind) {
			d.act(f.Kind)
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

// Planned returns what has not struck for the last time, with what is left of
// After and Count.
func (d *Device) Planned() []Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.plan.list)
}

// Clear withdraws what is planned. What struck stays.
func (d *Device) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan.list = nil
	d.recount()
}

// Release lets the verbs that hang return, as those of hardware do when it is
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
		busy = busy || q.suffers()
	}
	d.busy.Store(busy)
}

func (d *Device) strikeOne(k Kind) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.recount()
	return d.plan.strike(k, "")
}

// act does what an instant fault does.
func (d *Device) act(k Kind) {
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
	default: // the others wait for their occasion
	}
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

// Counters implements [hca.Device]: the backend's, and how often each kind that
// struck did so.
func (d *Device) Counters() []hca.Counter {
	out := d.Device.Counters()
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, n := range d.plan.struck {
		if n > 0 {
			out = append(out, hca.Counter{Name: "fault_" + names[k], Value: n})
		}
	}
	return out
}

// WireBlocked implements [hca.WireReporter].
func (d *Device) WireBlocked() uint64 { return hca.WireBlockedOf(d.Device) }

// Strays implements [hca.StrayReporter].
func (d *Device) Strays() (hca.Strays, bool) { return hca.StraysOf(d.Device) }

// Close implements [hca.Device].
func (d *Device) Close() error {
	d.hang("close_device")
	return d.Device.Close()
}
