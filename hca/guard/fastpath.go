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

// AddPeer implements [hca.FastPath]. It passes on the backend's handle.
func (f *fastPath) AddPeer(mac [6]byte, to hca.UDDest) error {
	ah, ok := to.AH.(*AH)
	if !ok || ah.dev != f.dev {
		return f.dev.wrap("add_fast_peer", hca.ErrInvalid)
	}
	to.AH = ah.inner
	return f.FastPath.AddPeer(mac, to)
}
