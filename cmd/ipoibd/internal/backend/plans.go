package backend

import (
	"errors"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// plans keeps what is planned from one instance of the device to the next: what
// an operator ordered to strike so many times does so, whatever is reset meanwhile.
// What has struck ends with its instance.
type plans struct {
	mu    sync.Mutex
	now   *faults.Device // the present instance; nil: none
	later []faults.Fault // for the next one
}

// wrap makes the next instance; the one before is retired.
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

// retire ends the present instance: what hangs in it returns. Harmless where
// there are no plans.
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

// ErrNotOpen: no fault can be injected.
var ErrNotOpen = errors.New("the device is not open")

// clear withdraws what has not struck.
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
	return dev.Inject(f) // outside of the lock: it may unplug
}
