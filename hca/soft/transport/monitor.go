package transport

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/hca"
)

// Monitor holds the state of an underlay for the methods State and WaitChange of its transports.
// Any goroutine may call its methods; only WaitChange blocks. The zero value holds no state yet.
type Monitor struct {
	mu      sync.Mutex
	state   State         // its slice is never changed
	version uint64        // of state
	seen    uint64        // version returned last
	changed chan struct{} // closed and removed by each new version; nil: no one waits
}

// Set replaces the state if it differs. It does not keep the slice of s.
func (m *Monitor) Set(s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.equal(&m.state) {
		return
	}
	m.state = s.clone()
	m.version++
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// State returns the current state; its slice belongs to the caller.
func (m *Monitor) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read()
}

// WaitChange blocks until the state may differ from the one that State or WaitChange returned
// last, ctx ends, or closed is closed. A change that was undone before the call counts too. Errors:
// ctx's, or hca.ErrClosed.
func (m *Monitor) WaitChange(ctx context.Context, closed <-chan struct{}) (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		select {
		case <-closed:
			return State{}, hca.ErrClosed
		default:
		}
		if m.seen != m.version {
			return m.read(), nil
		}
		if m.changed == nil {
			m.changed = make(chan struct{})
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-closed:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if err := ctx.Err(); err != nil {
			return State{}, err
		}
	}
}

// Has reports whether the underlay has an address. It does not count as reading the state.
func (m *Monitor) Has(a netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.state.Addrs, a)
}

// read returns a copy of the state, and notes that it was read. m.mu is held.
func (m *Monitor) read() State {
	m.seen = m.version
	return m.state.clone()
}

func (s State) clone() State {
	s.Addrs = slices.Clone(s.Addrs)
	return s
}

func (s *State) equal(t *State) bool {
	return s.Name == t.Name && s.Index == t.Index && s.Present == t.Present && s.Up == t.Up &&
		s.MTU == t.MTU && s.MAC == t.MAC && slices.Equal(s.Addrs, t.Addrs)
}
