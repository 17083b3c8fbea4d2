package faults

import (
	"slices"

	"ipoibd/hca"
)

// fastPath holds the backend's fast path while a fault is pending or in effect, because faults do not affect what the
// kernel carries.
type fastPath struct {
	hca.FastPath
	held bool // guarded by Device.mu
}

var _ hca.FastPathCreator = (*QP)(nil)

// CreateFastPath implements [hca.FastPathCreator].
func (q *QP) CreateFastPath(spec hca.FastPathSpec) (hca.FastPath, error) {
	if q.dev.gone.Load() {
		return nil, wrap("create_fast_path", hca.ErrIO)
	}
	inner, err := hca.CreateFastPath(q.QP, spec)
	if err != nil {
		return nil, err
	}
	f := &fastPath{FastPath: inner}
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.fast = f
	q.dev.holdFast()
	return f, nil
}

// holdFast holds the fast path of each QP that a fault may affect, and releases the others. d.mu is held.
func (d *Device) holdFast() {
	all := d.busy.Load() || d.mute.Load() || d.gone.Load() || d.port != port{}
	for _, q := range d.qps {
		hold := all || slices.ContainsFunc(q.cqs, (*CQ).failed)
		f := q.fast
		switch {
		case f == nil || f.held == hold:
		case hold:
			f.held = true
			f.Hold()
		default:
			f.held = false
			f.Release()
		}
	}
}
