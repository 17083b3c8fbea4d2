package backend

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
)

// Handed is what another process needs to continue an HCA. The descriptors belong to Sockets, the last ones to
// Members.
type Handed struct {
	Sockets *udp.Handed // of the software HCA; nil: nothing is continued
	Members int         // sockets that are members of IP groups
	// Names are the addresses of the peers that are configured by name, as last looked up.
	Names map[string][]netip.Addr
	// Plugged is what faults have made of the slot.
	Plugged Plugged
}

// heritable is an HCA that another process can continue. Queue pairs of a real HCA end with the
// process that has created them, so a real one is only opened again.
type heritable interface {
	// pause leaves what arrives from then on to the kernel, until resume.
	pause() error
	resume()
	// handOver returns what another process needs, with descriptors, which the caller closes.
	handOver() (Handed, []int, error)
	// members returns the sockets that are members of IP groups, which the caller closes.
	members() ([]int, error)
	// giveUp leaves everything to the other process, also when the HCA is closed.
	giveUp()
	// inherit continues the HCA of another process, whose descriptors it owns from then on, also
	// after an error. Await are the numbers of its queue pairs.
	inherit(h Handed, fds []int, await []hca.QPN) error
}

// Pause stops receiving at a boundary, because another process may continue the HCA, until Resume.
// The owners of queue pairs must post receives meanwhile. On error nothing has stopped.
func (s *Slot) Pause() error {
	if h, ok := s.hca.(heritable); ok {
		return h.pause()
	}
	return nil
}

// Resume ends a pause.
func (s *Slot) Resume() {
	if h, ok := s.hca.(heritable); ok {
		h.resume()
	}
}

// HandOver returns what another process needs to continue the HCA, which is paused, with descriptors,
// which the caller closes.
func (s *Slot) HandOver() (h Handed, fds []int, err error) {
	if from, ok := s.hca.(heritable); ok {
		h, fds, err = from.handOver()
		members, more := from.members()
		h.Members, fds, err = len(members), append(fds, members...), errors.Join(err, more)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Plugged = s.plugged
	return h, fds, err
}

// GiveUp leaves to another process what HandOver has returned.
func (s *Slot) GiveUp() {
	if h, ok := s.hca.(heritable); ok {
		h.giveUp()
	}
}

// Inherit continues the HCA of another process, before the first Open. It owns the descriptors from
// then on, also after an error. Await are the numbers of the queue pairs, without which the HCA
// should not receive yet.
func (s *Slot) Inherit(h Handed, fds []int, await []hca.QPN) error {
	if s.allowFaults {
		s.mu.Lock()
		s.plugged = h.Plugged
		s.mu.Unlock()
	}
	if at := len(fds) - h.Members; h.Members > 0 && at >= 0 {
		s.mu.Lock()
		s.members, fds = fds[at:], fds[:at:at]
		s.mu.Unlock()
	}
	to, ok := s.hca.(heritable)
	if h.Sockets != nil && ok {
		return to.inherit(h, fds, await)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if h.Sockets != nil || len(fds) > 0 {
		return fmt.Errorf("%d descriptors for an HCA that continues nothing: %w", len(fds), hca.ErrInvalid)
	}
	return nil
}

// Settled ends the memberships of the other process. It is called once the users of the HCA have joined their
// groups themselves: without a member in between, the kernel would drop what is sent to a group.
func (s *Slot) Settled() {
	s.mu.Lock()
	members := s.members
	s.members = nil
	s.mu.Unlock()
	for _, fd := range members {
		_ = unix.Close(fd)
	}
}

func (h *softHCA) pause() error {
	e := h.engine.Load()
	if e == nil {
		return nil
	}
	if err := e.Pause(); !errors.Is(err, hca.ErrClosed) {
		return err
	}
	return nil
}

func (h *softHCA) resume() {
	if e := h.engine.Load(); e != nil {
		e.Resume()
	}
}

func (h *softHCA) handOver() (Handed, []int, error) {
	var drops []uint32
	if e := h.engine.Load(); e != nil {
		for _, lane := range e.lanes {
			drops = append(drops, lane.Drops())
		}
	}
	sockets, fds, err := h.port.HandOver(drops)
	if errors.Is(err, udp.ErrNotBound) {
		return Handed{}, nil, nil
	}
	return Handed{Sockets: &sockets, Names: h.peers.lookedUp()}, fds, err
}

func (h *softHCA) members() ([]int, error) {
	if e := h.engine.Load(); e != nil {
		return e.lanes[0].Memberships()
	}
	return nil, nil
}

func (h *softHCA) giveUp() {
	h.port.GiveUp()
	if e := h.engine.Load(); e != nil {
		e.lanes[0].GiveUpMemberships()
	}
}

func (h *softHCA) inherit(from Handed, fds []int, await []hca.QPN) error {
	h.await = await
	h.peers.remember(from.Names)
	return h.port.Inherit(*from.Sockets, fds)
}

// lookedUp returns the addresses of all names.
func (l *peerList) lookedUp() map[string][]netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := maps.Clone(l.known)
	delete(names, literals)
	return names
}

// remember uses the addresses of names that were looked up before, until Run looks them up.
func (l *peerList) remember(names map[string][]netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, addrs := range names {
		bad := slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a != plain(a) || !a.IsValid() })
		if slices.Contains(l.names, name) && len(addrs) <= maxNameAddrs && !bad {
			l.known[name] = addrs
		}
	}
	l.publish()
}
