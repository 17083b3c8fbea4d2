package guard

import "ipoibd/hca"

// fastPath is a guarded [hca.FastPath].
type fastPath struct {
	hca.FastPath
	dev *Device
}

var _ hca.FastPathCreator = (*QP)(nil)

// CreateFastPath implements [hca.FastPathCreator].
func (q *QP) CreateFastPath(spec hca.FastPathSpec) (hca.FastPath, error) {
	return create(q.dev, verb{name: "create_fast_path", on: []*object{&q.object}}, func() (hca.FastPath, error) {
		inner, err := hca.CreateFastPath(q.inner, spec)
		if err != nil {
			return nil, err
		}
		return &fastPath{inner, q.dev}, nil
	})
}

// inner replaces the handle of a destination by the backend's.
func (f *fastPath) inner(to hca.UDDest) (hca.UDDest, bool) {
	ah, ok := to.AH.(*AH)
	if !ok || ah.dev != f.dev {
		return to, false
	}
	to.AH = ah.inner
	return to, true
}

// AddPeer implements [hca.FastPath].
func (f *fastPath) AddPeer(mac [6]byte, to hca.UDDest) error {
	inner, ok := f.inner(to)
	if !ok {
		return f.dev.wrap("add_fast_peer", hca.ErrInvalid)
	}
	return f.FastPath.AddPeer(mac, inner)
}

// Renew implements [hca.FastPath].
func (f *fastPath) Renew(mac [6]byte, to hca.UDDest) bool {
	inner, ok := f.inner(to)
	return ok && f.FastPath.Renew(mac, inner)
}
