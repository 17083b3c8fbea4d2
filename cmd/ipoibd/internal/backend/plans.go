package backend

import (
	"errors"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// plans carries planned faults from one instance of the device to the next: a fault that is
// to fire n times does so, even if the device is reset in between. The effects of faults
// that have fired end with their instance.
type plans struct {
	mu    sync.Mutex
	now   *faults.Device // the current instance; nil: none
	later []faults.Fault // for the next instance
}

// wrap makes the next instance. The previous one must be retired.
func (p *plans) wrap(dev hca.Device, opts faults.Options) (*faults.Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = faults.Wrap(dev, opts)
	for _, f := range p.later {
		if err := p.now.Inject(f); err != nil {
			return nil, err
		}
	}
	p.later = nil
	return p.now, nil
}

// retire ends the current instance and makes the verbs return that hang in it. It does
// nothing if p is nil.
func (p *plans) retire() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return
	}
	p.later = append(p.later, p.now.Planned()...)
	p.now.Clear()
	p.now.Release()
	p.now = nil
}

// ErrNotOpen means that there is no instance to inject a fault into.
var ErrNotOpen = errors.New("the device is not open")

// clear withdraws the faults that have not fired.
func (p *plans) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.later = nil
	if p.now != nil {
		p.now.Clear()
	}
}

func (p *plans) inject(f faults.Fault) error {
	p.mu.Lock()
	dev := p.now
	p.mu.Unlock()
	if dev == nil {
		return ErrNotOpen
	}
	return dev.Inject(f) // without the lock, because it may unplug the device
}
