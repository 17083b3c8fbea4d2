package memsubnet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

// Device is the open HCA of a port. It has the optional capabilities of hardware: none.
type Device struct {
	hca.Device
	soft   *soft.Device // the same
	port   *Port
	netdev *memfabric.Port
	events events
	lastID atomic.Uint64 // of posted receives

	mu  sync.Mutex
	qps map[hca.QPN]*QP
	mrs map[uint32]*MR // by L_Key
}

// Netdev returns the netdev below the HCA. Removing it is a fatal error of the device.
func (d *Device) Netdev() *memfabric.Port { return d.netdev }

// Attr implements [hca.Device].
func (d *Device) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.Transport, a.MaxQueues = hca.TransportHardware, 1
	return a
}

// QueryPort implements [hca.Device].
func (d *Device) QueryPort(num uint8) (hca.PortAttr, error) {
	if _, err := d.Device.QueryPort(num); err != nil {
		return hca.PortAttr{}, err
	}
	return d.port.Attr(), nil
}

// setPKeys replaces the P_Key table of the software HCA, where a key keeps its index and a new one gets
// the first empty entry. If that does not lead to the wanted table, it is built again, with stand-ins for
// its empty entries.
func (d *Device) setPKeys(want []hca.PKey) {
	d.soft.SetPKeys(want)
	a, err := d.soft.QueryPort(1)
	if err != nil || slices.Equal(used(a.PKeys), used(want)) {
		return
	}
	full := slices.Clone(want)
	for i := range full {
		for k := hca.PKey(1); full[i] == 0; k++ {
			if !slices.Contains(full, k) {
				full[i] = k
			}
		}
	}
	d.soft.SetPKeys(nil)
	d.soft.SetPKeys(full)
	d.soft.SetPKeys(want)
}

// used returns a table without the empty entries at its end.
func used(table []hca.PKey) []hca.PKey {
	for len(table) > 0 && table[len(table)-1] == 0 {
		table = table[:len(table)-1]
	}
	return table
}

// setMTU changes the MTU of the netdev, and waits until the software HCA has adopted it, or is gone.
func (d *Device) setMTU(mtu hca.MTU) {
	d.netdev.SetMTU(int(mtu) + overhead)
	for {
		a, err := d.soft.QueryPort(1)
		if err != nil || a.ActiveMTU == mtu {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// AllocPD implements [hca.Device].
func (d *Device) AllocPD() (hca.PD, error) {
	inner, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &PD{PD: inner, dev: d}, nil
}

// CreateCQ implements [hca.Device].
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	inner, err := d.Device.CreateCQ(spec)
	if err != nil {
		return nil, err
	}
	return &CQ{CQ: inner, dev: d}, nil
}

// Close implements [hca.Device].
func (d *Device) Close() error {
	err := d.Device.Close()
	s := d.port.subnet
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && d.port.dev == d {
		d.port.dev = nil
	}
	return err
}

// maxEvents bounds the port's events in the queue. It is more than a test raises.
const maxEvents = 256

// events holds the port's events.
type events struct {
	mu     sync.Mutex
	queue  []hca.AsyncEvent
	cancel context.CancelFunc // ends NextEvent of the software HCA
}

func (e *events) put(ev hca.AsyncEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) < maxEvents {
		e.queue = append(e.queue, ev)
	}
	if e.cancel != nil {
		e.cancel()
	}
}

// pop removes and returns the first event. If there is none, the next put calls cancel.
func (e *events) pop(cancel context.CancelFunc) (hca.AsyncEvent, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		e.cancel = cancel
		return hca.AsyncEvent{}, false
	}
	ev := e.queue[0]
	e.queue = e.queue[1:]
	return ev, true
}

// NextEvent implements [hca.Device].
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	for {
		inner, cancel := context.WithCancel(ctx)
		ev, ok := d.events.pop(cancel)
		if ok {
			cancel()
			return ev, nil
		}
		ev, err := d.Device.NextEvent(inner)
		interrupted := inner.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil && ev.On.Kind != hca.KindPort || err != nil && !interrupted {
			return ev, err
		}
	}
}
