package soft

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// MR is registered memory: an anonymous mapping.
type MR struct {
	pd   *PD
	mem  []byte
	base uint64 // address of mem[0]
	lkey uint32
}

var _ hca.MR = (*MR)(nil)

// AllocMR implements [hca.PD].
func (p *PD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	if size <= 0 {
		return nil, verb("reg_mr", fmt.Sprint(size), hca.ErrInvalid)
	}
	if err := p.lockUsable(); err != nil {
		return nil, verb("reg_mr", fmt.Sprint(size), err)
	}
	defer p.dev.mu.Unlock()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		kind := hca.ErrIO
		if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) {
			kind = hca.ErrNoMemory
		}
		return nil, verb("reg_mr", fmt.Sprintf("%d bytes", size), fmt.Errorf("%w: mmap: %w", kind, err))
	}
	m := &MR{pd: p, mem: mem, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))}
	env := p.dev.env()
	env.Memory, m.lkey = env.Memory.With(softqp.Region{
		PD: p.id, Base: m.base, Mem: mem, Write: access&hca.AccessLocalWrite != 0,
	})
	p.dev.setEnv(env)
	p.children++
	return m, nil
}

// deregister withdraws memory from the data path and waits until nothing uses it. d.mu is
// held.
func (d *Device) deregister(lkey uint32) {
	env := d.env()
	env.Memory = env.Memory.Without(lkey)
	d.setEnv(env)
	for _, q := range d.routes.Load().qps {
		for _, x := range q.queues {
			x.lock()
			x.unlock()
		}
	}
}

// Bytes implements [hca.MR].
func (m *MR) Bytes() []byte { return m.mem }

// SGE implements [hca.MR].
func (m *MR) SGE(off, n int) hca.SGE {
	_ = m.mem[off : off+n]
	return hca.SGE{Addr: m.base + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Close implements [hca.MR].
func (m *MR) Close() error {
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.mem == nil {
		return nil
	}
	d.deregister(m.lkey)
	mem := m.mem
	m.mem = nil
	m.pd.children--
	return verb("dereg_mr", "", unix.Munmap(mem))
}
