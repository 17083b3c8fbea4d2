//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"ipoibd/hca"
)

// AH is an address handle.
type AH struct {
	life
	pd   *PD
	spec hca.AHSpec
	ah   atomic.Pointer[C.struct_ibv_ah] // nil once closed
}

var _ hca.AH = (*AH)(nil)

// CreateAH implements [hca.PD].
func (p *PD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	on := spec.DGID.String()
	if err := checkAH(&spec); err != nil {
		return nil, refused(verbCreateAH, on, err)
	}
	if err := p.enter(); err != nil {
		return nil, refused(verbCreateAH, on, err)
	}
	defer p.leave()
	attr := ahAttr(&spec)
	ah, err := C.shim_create_ah(p.pd, &attr)
	if ah == nil {
		return nil, p.dev.whyNoAH(failedNull(verbCreateAH, on, err), spec.Port)
	}
	p.adopt()
	a := &AH{pd: p, spec: spec}
	a.ah.Store(ah)
	return a, nil
}

// checkAH returns an error for values that do not fit into struct ibv_ah_attr.
func checkAH(s *hca.AHSpec) error {
	const maxIndex, maxSL, maxFlowLabel = 255, 15, 1<<20 - 1
	switch {
	case s.SGIDIndex < 0 || s.SGIDIndex > maxIndex:
		return fmt.Errorf("%w: no GID at index %d", hca.ErrInvalid, s.SGIDIndex)
	case s.SL > maxSL || s.FlowLabel > maxFlowLabel || s.Global && s.DGID.IsZero():
		return hca.ErrInvalid
	}
	return nil
}

func ahAttr(s *hca.AHSpec) (a C.struct_ibv_ah_attr) {
	a.dlid, a.sl, a.static_rate, a.port_num = C.uint16_t(s.DLID), C.uint8_t(s.SL), C.uint8_t(s.Rate), C.uint8_t(s.Port)
	if s.Global {
		a.is_global = 1
		a.grh.dgid = C.union_ibv_gid(s.DGID)
		a.grh.flow_label, a.grh.sgid_index = C.uint32_t(s.FlowLabel), C.uint8_t(s.SGIDIndex)
		a.grh.hop_limit, a.grh.traffic_class = C.uint8_t(s.HopLimit), C.uint8_t(s.Traffic)
	}
	return a
}

// whyNoAH distinguishes two cases: the GID is no longer in its table (ENODATA from
// rdma_get_gid_attr in drivers/infiniband/core/cache.c) or has lost its netdev (ENODEV
// from rdma_read_gid_attr_ndev_rcu), which may be one VLAN of several; or the device is
// gone.
func (d *Device) whyNoAH(err error, port uint8) error {
	if !errors.Is(err, syscall.ENODATA) && !errors.Is(err, syscall.ENODEV) {
		return err
	}
	if _, lost := d.portAttr(port); errors.Is(lost, hca.ErrIO) {
		return lost
	}
	return err
}

// handle returns the C object of an address handle, or nil if the handle is closed, or
// belongs to another domain or another backend.
func (p *PD) handle(ah hca.AH) *C.struct_ibv_ah {
	if a, ok := ah.(*AH); ok && a != nil && a.pd == p {
		return a.ah.Load()
	}
	return nil
}

// Spec implements [hca.AH].
func (a *AH) Spec() hca.AHSpec { return a.spec }

// Close implements [hca.AH].
func (a *AH) Close() error {
	on := a.spec.DGID.String()
	return refused("destroy_ah", on, a.close(func() error {
		ah := a.ah.Swap(nil)
		err := failed("destroy_ah", on, errno(C.shim_destroy_ah(ah)))
		if err != nil {
			a.ah.Store(ah)
		}
		return err
	}, &a.pd.life))
}
