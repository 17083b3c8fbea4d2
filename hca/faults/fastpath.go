package faults

import "ipoibd/hca"

var _ hca.FastPathCreator = (*QP)(nil)

// CreateFastPath implements [hca.FastPathCreator]. What the fast path carries, no fault reaches: its user holds it while
// there are any.
func (q *QP) CreateFastPath(spec hca.FastPathSpec) (hca.FastPath, error) {
	if err := q.dev.enter("create_fast_path"); err != nil {
		return nil, err
	}
	return hca.CreateFastPath(q.QP, spec)
}
