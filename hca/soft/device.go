package soft

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// Attributes of a device (struct ibv_device_attr).
const (
	maxQueues = transport.MaxLanes // of one QP: one in each lane
	maxQPWR   = 1 << 14            // requests of some hundred bytes: some MB per queue
	maxCQE    = 1 << 16            // four full queues
)

// Device is an open software HCA.
type Device struct {
	cfg   Config
	attr  hca.DeviceAttr
	lanes []*lane // at least one; the first one watches the underlay and joins groups

	routes  atomic.Pointer[routes]
	lost    atomic.Bool // the underlay is gone
	failing atomic.Bool // one side or queue of a QP has failed; settle moves the others
	paused  atomic.Bool // see Pause

	awaiting atomic.Bool // slow.await is not empty

	fastPaths atomic.Int32 // of its QPs

	events events
	nat    natWatch
	strays strays

	newPath chan struct{} // has a value after a destination was added

	stop  context.CancelFunc
	loops sync.WaitGroup

	mu   sync.Mutex // not held during calls that wait for the kernel's rtnl lock
	slow slow
}

var (
	_ hca.Device        = (*Device)(nil)
	_ hca.WireReporter  = (*Device)(nil)
	_ hca.StrayReporter = (*Device)(nil)
	_ hca.PathRefuter   = (*Device)(nil)
)

// slow holds the fields that Device.mu guards.
type slow struct {
	closed    bool
	children  int    // PDs and CQs
	lastID    uint32 // numbers PDs and CQs, and is the generation of everything
	port      port
	dests     map[netip.Addr]int        // the number of address handles of each unicast destination
	refuted   map[netip.Addr]int        // payloads with which RefutePath was called since the last look
	await     map[hca.QPN]bool          // QPs that have no receives yet; see Config.Await
	patience  *time.Timer               // ends the wait for them; nil: there was none
	lingering map[netip.Addr]*lingering // by group
}

// Open opens a device over a transport, which the device owns from then on.
func Open(cfg Config) (*Device, error) {
	if err := cfg.check(); err != nil {
		return nil, verb("open_device", cfg.Name, err)
	}
	cfg = cfg.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	d := &Device{cfg: cfg, stop: stop, newPath: make(chan struct{}, 1)}
	d.slow.lingering = map[netip.Addr]*lingering{}
	for i, wire := range append([]transport.Transport{cfg.Transport}, cfg.More...) {
		d.lanes = append(d.lanes, newLane(d, i, wire))
	}
	wire := cfg.Transport
	d.events.init()
	d.routes.Store(&routes{})
	state := wire.State()
	if d.cfg.GUID == (hca.GUID{}) {
		d.cfg.GUID = GUIDOf(state.MAC)
	}
	d.attr = deviceAttr(cfg.Name, d.cfg.GUID)
	d.slow.port.become(&state, cfg.StandardMTU)
	d.setEnv(softqp.Env{
		Up: d.slow.port.up, GIDs: d.slow.port.engineGIDs(),
		PKeys:     slices.Clone(cfg.PKeys),
		Replicate: cfg.Peers != nil, Memory: &softqp.Memory{},
	})
	d.loops.Go(func() { d.watchLoop(ctx) })
	if known, ok := wire.(transport.Paths); ok {
		w := &pathWatch{dev: d, wire: known}
		w.look(time.Now()) // so that the port has its limits from the start
		d.loops.Go(func() { w.run(ctx) })
	}
	for _, l := range d.lanes {
		l.turn.init(l.receiveAlone, len(cfg.Await) > 0)
		d.loops.Go(func() { l.drainLoop(ctx) })
	}
	d.await(cfg.Await)
	return d, nil
}

func deviceAttr(name string, g hca.GUID) hca.DeviceAttr {
	return hca.DeviceAttr{
		Name: name, NodeGUID: g, SysImageGUID: g, Ports: 1,
		Transport: hca.TransportSoftware,
		MaxQPWR:   maxQPWR, MaxSGE: softqp.MaxSGE, MaxCQE: maxCQE, MaxQueues: maxQueues,
		IPCsum: true, MaxTSO: softqp.MaxTSO, USO: true, LRO: true, BlocksLoop: true,
		NeverBlocks: true,
	}
}

// Attr implements [hca.Device].
func (d *Device) Attr() hca.DeviceAttr { return d.attr }

// QueryPort implements [hca.Device]; it does not block.
func (d *Device) QueryPort(num uint8) (hca.PortAttr, error) {
	if num != 1 {
		return hca.PortAttr{}, verb("query_port", d.cfg.Name, hca.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return hca.PortAttr{}, verb("query_port", d.cfg.Name, err)
	}
	return d.slow.port.attr(d.attr.NodeGUID, d.cfg.PKeys), nil
}

// env returns a copy of the data path's view of the port.
func (d *Device) env() softqp.Env { return *d.lanes[0].env.Load() }

// setEnv replaces that view. d.mu is held.
func (d *Device) setEnv(env softqp.Env) {
	for _, l := range d.lanes {
		own := env
		own.SrcPort = l.wire.SrcPort()
		l.env.Store(&own)
	}
}

// usable returns the reason why a verb that needs the device must fail, or nil. d.mu must
// be held.
func (d *Device) usable() error {
	switch {
	case d.slow.closed:
		return hca.ErrClosed
	case d.lost.Load():
		return hca.ErrIO
	}
	return nil
}

// newID returns the number of a new object. d.mu must be held.
func (d *Device) newID() uint32 {
	d.slow.lastID++
	return d.slow.lastID
}

// AllocPD implements [hca.Device]; it does not block.
func (d *Device) AllocPD() (hca.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, verb("alloc_pd", d.cfg.Name, err)
	}
	d.slow.children++
	return &PD{dev: d, id: d.newID()}, nil
}

// NextEvent implements [hca.Device].
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	return d.events.next(ctx)
}

// Close implements [hca.Device]. It closes the transports and waits for the
// device's goroutines.
func (d *Device) Close() error {
	if closing, err := d.markClosed(); !closing {
		return err
	}
	d.stop()
	d.arrived(0)
	d.endLingering()
	var errs []error
	for _, l := range d.lanes {
		errs = append(errs, l.close())
	}
	d.loops.Wait()
	d.events.close()
	return verb("close_device", d.cfg.Name, errors.Join(errs...))
}

// markClosed reports whether this call is the one that closes.
func (d *Device) markClosed() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.slow.closed:
		return false, nil
	case d.slow.children > 0:
		return false, verb("close_device", d.cfg.Name, hca.ErrBusy)
	}
	d.slow.closed = true
	return true, nil
}

// lose notes that the underlay is gone permanently.
func (d *Device) lose() {
	if !d.lost.Swap(true) {
		d.shut()
		d.emit(hca.EventDeviceFatal, hca.ObjectID{Kind: hca.KindDevice})
	}
}

func (d *Device) emit(t hca.EventType, on hca.ObjectID) {
	if !d.events.put(hca.AsyncEvent{Type: t, On: on}) {
		d.lanes[0].counts.add(eventsLost, 1)
	}
}

// verb wraps an error, nil included.
func verb(name, on string, err error) error {
	if err == nil {
		return nil
	}
	return &hca.VerbError{Verb: name, On: on, Err: err}
}
