//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import "ipoibd/hca"

// PD is a protection domain.
type PD struct {
	life
	dev *Device
	pd  *C.struct_ibv_pd

	regions regions
}

var _ hca.PD = (*PD)(nil)

// Close implements [hca.PD].
func (p *PD) Close() error {
	return refused("dealloc_pd", p.dev.attr.Name, p.close(func() error {
		return failed("dealloc_pd", p.dev.attr.Name, errno(C.shim_dealloc_pd(p.pd)))
	}, &p.dev.life))
}
