package sm

import (
	"time"

	"ipoibd/scripts/vm/ibwire"
)

// pollInterval is how often the switch reads its tables and the attributes of its ports.
const pollInterval = 50 * time.Millisecond

// poll reads the tables and the attributes of the ports until the switch ends.
func (s *Switch) poll() {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if err := s.pollOnce(); err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
			return
		}
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
	}
}

// pollOnce reads the ports before the tables. The subnet manager writes the tables before it activates a port, so a port
// that a host sees as active has its routes.
func (s *Switch) pollOnce() error {
	controls := make([]ibwire.Control, len(s.hosts))
	for i, h := range s.hosts {
		info, err := h.client.call(typePortInfo, make([]byte, infoLen))
		if err != nil {
			return err
		}
		pkeys, err := h.client.call(typePKeys, nil)
		if err != nil {
			return err
		}
		controls[i] = attributes(info, pkeys)
	}
	t, err := s.tool.readTables()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables = t
	for i, h := range s.hosts {
		s.update(h, controls[i])
	}
	return nil
}

// update sends a host the attributes of its port if they have changed, or if an event was raised. The caller holds mu.
func (s *Switch) update(h *host, current ibwire.Control) {
	p := &s.ports[h.number]
	p.state, p.mtu = current.State, mtuBytes(current.MTU)
	h.control = current
	if current == h.told && h.raised == 0 {
		return
	}
	frame := current
	frame.Events = changes(&h.told, &current) | h.raised
	select {
	case h.queue <- ibwire.Frame(ibwire.TypeControl, frame.Append(nil)):
		h.told, h.raised = current, 0
	default: // again with the next poll
	}
}
