package soft

import (
	"context"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// watchLoop follows the underlay until the device closes or the netdev is gone.
func (d *Device) watchLoop(ctx context.Context) {
	for !d.lost.Load() {
		s, err := d.lanes[0].wire.WaitChange(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.lose()
		default:
			d.applyState(&s)
		}
	}
}

// applyState applies a new state of the underlay.
func (d *Device) applyState(s *transport.State) {
	c := d.publishPort(s)
	d.updateGates()
	on := hca.ObjectID{Kind: hca.KindPort, Num: 1}
	if !s.Present {
		d.lose()
		return
	}
	if c&changedGIDs != 0 {
		d.emit(hca.EventGIDChange, on)
	}
	switch {
	case c&changedState != 0 && !s.Up:
		d.emit(hca.EventPortErr, on)
	case c != 0 && c != changedGIDs && s.Up:
		d.emit(hca.EventPortActive, on)
	}
}

// publishPort replaces the data path's view of the port.
func (d *Device) publishPort(s *transport.State) change {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.slow.port.become(s, d.cfg.StandardMTU)
	env := d.env()
	env.Up, env.GIDs = d.slow.port.up, d.slow.port.engineGIDs()
	d.setEnv(env)
	return c
}
