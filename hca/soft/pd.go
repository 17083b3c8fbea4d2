package soft

import (
	"fmt"

	"ipoibd/hca"
)

// PD is a protection domain. Its fields are guarded by Device.mu.
type PD struct {
	dev      *Device
	id       uint32
	children int
	closed   bool
}

var _ hca.PD = (*PD)(nil)

// lockUsable locks the device for a verb that allocates under p. On success the caller
// must unlock it.
func (p *PD) lockUsable() error {
	p.dev.mu.Lock()
	err := p.dev.usable()
	if p.closed {
		err = hca.ErrClosed
	}
	if err != nil {
		p.dev.mu.Unlock()
	}
	return err
}

// Close implements [hca.PD].
func (p *PD) Close() error {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	switch {
	case p.closed:
		return nil
	case p.children > 0:
		return verb("dealloc_pd", fmt.Sprint(p.id), hca.ErrBusy)
	}
	p.closed = true
	p.dev.slow.children--
	return nil
}
