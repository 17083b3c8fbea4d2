package guard

import (
	"io"

	"ipoibd/hca"
)

// create is call for a verb that creates an object. An object that is created after the
// caller has returned is closed.
func create[T io.Closer](d *Device, v verb, f func() (T, error)) (T, error) {
	a := call(d, v, f, func(made T, err error) {
		if err == nil {
			_ = made.Close()
		}
	})
	return a.val, a.err
}

// PD is a guarded [hca.PD].
type PD struct {
	object
	inner hca.PD
}

var _ hca.PD = (*PD)(nil)

// AllocPD implements [hca.Device].
func (d *Device) AllocPD() (hca.PD, error) {
	return create[hca.PD](d, verb{name: "alloc_pd", on: []*object{&d.self}}, func() (hca.PD, error) {
		inner, err := d.inner.AllocPD()
		if err != nil {
			return nil, err
		}
		p := &PD{inner: inner}
		p.object = object{dev: d, verb: "dealloc_pd", close: inner.Close, parents: []*object{&d.self}}
		p.register()
		return p, nil
	})
}

// Close implements [hca.PD].
func (p *PD) Close() error { return p.release() }

// child returns the object part of a child of p.
func (p *PD) child(verb string, release func() error) object {
	return object{dev: p.dev, verb: verb, close: release, parents: []*object{&p.object}}
}

// MR is a guarded [hca.MR].
type MR struct {
	object
	inner hca.MR
}

var _ hca.MR = (*MR)(nil)

// AllocMR implements [hca.PD]. Its timeout is Options.HostTimeout, because most of the
// time is spent on this machine's memory, not on the device.
func (p *PD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	v := verb{name: "reg_mr", on: []*object{&p.object}, patience: p.dev.opts.HostTimeout}
	return create[hca.MR](p.dev, v, func() (hca.MR, error) {
		inner, err := p.inner.AllocMR(size, access)
		if err != nil {
			return nil, err
		}
		m := &MR{object: p.child("dereg_mr", inner.Close), inner: inner}
		m.register()
		return m, nil
	})
}

// Bytes implements [hca.MR].
func (m *MR) Bytes() []byte { return m.inner.Bytes() }

// SGE implements [hca.MR].
func (m *MR) SGE(off, n int) hca.SGE { return m.inner.SGE(off, n) }

// Close implements [hca.MR].
func (m *MR) Close() error { return m.release() }

// AH is a guarded [hca.AH].
type AH struct {
	object
	inner hca.AH
}

var _ hca.AH = (*AH)(nil)

// CreateAH implements [hca.PD]. Its timeout is Options.AHTimeout. While too many handles are
// being created, it returns [hca.ErrBusy].
func (p *PD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	v := verb{name: "create_ah", on: []*object{&p.object}, patience: p.dev.opts.AHTimeout, peer: true}
	return create[hca.AH](p.dev, v, func() (hca.AH, error) {
		inner, err := p.inner.CreateAH(spec)
		if err != nil {
			return nil, err
		}
		a := &AH{object: p.child("destroy_ah", inner.Close), inner: inner}
		a.register()
		return a, nil
	})
}

// Spec implements [hca.AH].
func (a *AH) Spec() hca.AHSpec { return a.inner.Spec() }

// Close implements [hca.AH].
func (a *AH) Close() error { return a.release() }
