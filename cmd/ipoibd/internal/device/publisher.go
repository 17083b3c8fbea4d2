package device

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"ipoibd/cmd/ipoibd/internal/resetlock"
)

// publisher shows other goroutines the state of a device, and notifies them.
type publisher struct {
	last  atomic.Pointer[published]
	locks atomic.Pointer[resetlock.Sharer] // nil: they are not open yet

	mu   sync.Mutex // guards subs
	subs map[chan struct{}]struct{}
}

// published is the state of a device as other goroutines see it.
type published struct {
	view   View
	status Status // without the sharers
	opens  uint64
}

// publish replaces what is published, and notifies the subscribers if the view has changed.
func (p *publisher) publish(now published) {
	last := p.last.Swap(&now).view
	if now.view.Session == last.Session && now.view.GaveUp == last.GaveUp &&
		fmt.Sprint(now.view.Err) == fmt.Sprint(last.Err) && reflect.DeepEqual(now.view.Ports, last.Ports) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for ch := range p.subs {
		select {
		case ch <- struct{}{}:
		default: // it has not read the last one yet
		}
	}
}

// subscribe is [Device.Subscribe].
func (p *publisher) subscribe() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	ch <- struct{}{}
	p.mu.Lock()
	p.subs[ch] = struct{}{}
	p.mu.Unlock()
	return ch, func() {
		p.mu.Lock()
		delete(p.subs, ch)
		p.mu.Unlock()
	}
}
