//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// MR is registered memory: an anonymous mapping.
type MR struct {
	life
	pd   *PD
	mem  []byte
	mr   *C.struct_ibv_mr
	lkey uint32
}

var _ hca.MR = (*MR)(nil)

// registered is the number of bytes, in whole pages, that this process has registered. The
// limit of locked memory applies to the process.
var registered atomic.Int64

// pages rounds size up to whole pages.
func pages(size int) int64 {
	page := int64(os.Getpagesize())
	return (int64(size) + page - 1) / page * page
}

// AllocMR implements [hca.PD].
func (p *PD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	on := fmt.Sprintf("%d bytes", size)
	if size <= 0 {
		return nil, refused("reg_mr", on, hca.ErrInvalid)
	}
	if err := p.enter(); err != nil {
		return nil, refused("reg_mr", on, err)
	}
	defer p.leave()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, refused("reg_mr", on, fmt.Errorf("%w: mmap: %w", hca.ErrNoMemory, err))
	}
	m := &MR{pd: p, mem: mem}
	if err := m.register(access); err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	p.adopt()
	return m, nil
}

func (m *MR) register(access hca.Access) error {
	flags := C.int(0)
	if access&hca.AccessLocalWrite != 0 {
		flags = C.IBV_ACCESS_LOCAL_WRITE
	}
	mr, err := C.shim_reg_mr(m.pd.pd, unsafe.Pointer(&m.mem[0]), C.size_t(len(m.mem)), flags)
	total := registered.Add(pages(len(m.mem)))
	if mr == nil {
		registered.Add(-pages(len(m.mem)))
		err = failedNull("reg_mr", fmt.Sprintf("%d bytes", len(m.mem)), err)
		return explainLimit(err, uint64(total), memlockLimit())
	}
	m.mr, m.lkey = mr, uint32(mr.lkey)
	m.pd.regions.add(m)
	return nil
}

// regions are the registered regions of a domain, for reading the payload of sends.
type regions struct {
	mu    sync.RWMutex
	byKey map[uint32][]byte
}

func (r *regions) add(m *MR) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey == nil {
		r.byKey = map[uint32][]byte{}
	}
	r.byKey[m.lkey] = m.mem
}

// remove waits until no one reads a region.
func (r *regions) remove(m *MR) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, m.lkey)
}

// find returns the memory of an entry, or nil if it is not in a region. The caller must hold mu
// while it uses the memory.
func (r *regions) find(e hca.SGE) []byte {
	mem := r.byKey[e.LKey]
	if len(mem) == 0 {
		return nil
	}
	off := e.Addr - uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	if n := uint64(len(mem)); off > n || uint64(e.Length) > n-off {
		return nil
	}
	return mem[off:][:e.Length]
}

// Bytes implements [hca.MR].
func (m *MR) Bytes() []byte { return m.mem }

// SGE implements [hca.MR].
func (m *MR) SGE(off, n int) hca.SGE {
	inside := m.mem[off : off+n]
	return hca.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(inside)))), Length: uint32(n), LKey: m.lkey}
}

// Close implements [hca.MR].
func (m *MR) Close() error {
	return refused("dereg_mr", m.pd.dev.attr.Name, m.close(func() error {
		m.pd.regions.remove(m)
		err := failed("dereg_mr", m.pd.dev.attr.Name, errno(C.shim_dereg_mr(m.mr)))
		if err == nil || errors.Is(err, hca.ErrIO) { // else the device may still use the memory
			registered.Add(-pages(len(m.mem)))
			_ = unix.Munmap(m.mem)
		} else {
			m.pd.regions.add(m)
		}
		return err
	}, &m.pd.life))
}
