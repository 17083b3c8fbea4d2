//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"slices"
	"sync"

	"ipoibd/hca"
)

// PD is a protection domain.
type PD struct {
	life
	dev *Device
	pd  *C.struct_ibv_pd

	regions regions
	headers headers
}

var _ hca.PD = (*PD)(nil)

// Close implements [hca.PD].
func (p *PD) Close() error {
	err := p.headers.close()
	return errors.Join(err, refused("dealloc_pd", p.dev.attr.Name, p.close(func() error {
		return failed("dealloc_pd", p.dev.attr.Name, errno(C.shim_dealloc_pd(p.pd)))
	}, &p.dev.life)))
}

// allocHeaders returns registered memory of at least size bytes for the headers of a queue pair, which gives it back to p.headers.
func (p *PD) allocHeaders(size int) (hca.MR, error) {
	if mr := p.headers.take(size); mr != nil {
		return mr, nil
	}
	return p.AllocMR(size, 0)
}

// headers is the memory for headers that queue pairs of a domain have left to the next one. Recovery replaces queue pairs, and a
// driver may take milliseconds to deregister memory: rdmavt waits for a grace period of RCU (rvt_dereg_mr in
// drivers/infiniband/sw/rdmavt/mr.c).
type headers struct {
	mu   sync.Mutex
	idle []hca.MR
}

// take returns memory of at least size bytes, or nil.
func (h *headers) take(size int) hca.MR {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.idle, func(mr hca.MR) bool { return len(mr.Bytes()) >= size })
	if i < 0 {
		return nil
	}
	mr := h.idle[i]
	h.idle = slices.Delete(h.idle, i, i+1)
	return mr
}

// put keeps the memory of a queue pair that no longer exists.
func (h *headers) put(mr hca.MR) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.idle = append(h.idle, mr)
}

// close deregisters the memory. What cannot be deregistered stays, and keeps the domain busy. While close hangs, take and put do
// not.
func (h *headers) close() error {
	h.mu.Lock()
	idle := h.idle
	h.idle = nil
	h.mu.Unlock()
	var errs []error
	for _, mr := range idle {
		if err := mr.Close(); err != nil {
			errs = append(errs, err)
			h.put(mr)
		}
	}
	return errors.Join(errs...)
}
