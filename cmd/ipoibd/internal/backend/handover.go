package backend

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/kernel/capsule"
)

// heritable is an HCA that another process can continue. Queue pairs of a real HCA end with the
// process that has created them, so a real one is only opened again.
type heritable interface {
	// pause leaves what arrives from then on to the kernel, until resume.
	pause() error
	resume()
	// exportTo puts what another process needs into a capsule, with the part "memberships": the sockets that are
	// members of IP groups.
	exportTo(w *capsule.Writer) error
	// giveUp leaves everything to the other process, also when the HCA is closed.
	giveUp()
	// importFrom continues the HCA of another process. Await are the numbers of its queue pairs.
	importFrom(r *capsule.Reader, await []hca.QPN) error
}

// handedSlot is the part "slot" of a capsule.
type handedSlot struct {
	Plugged Plugged `json:"plugged"` // what faults have made of the slot
}

// Pause stops receiving at a boundary, because another process may continue the HCA, until Resume.
// The owners of queue pairs must post receives meanwhile. On error nothing has stopped.
func (s *Slot) Pause() error {
	if h, ok := s.bare.(heritable); ok {
		return h.pause()
	}
	return nil
}

// Resume ends a pause.
func (s *Slot) Resume() {
	if h, ok := s.bare.(heritable); ok {
		h.resume()
	}
}

// Export puts what another process needs to continue the HCA, which is paused, into a capsule.
func (s *Slot) Export(w *capsule.Writer) error {
	if f := s.Faults; f != nil {
		f.mu.Lock()
		w.Put("slot", handedSlot{f.plugged})
		f.mu.Unlock()
	}
	if from, ok := s.bare.(heritable); ok {
		return from.exportTo(w)
	}
	return nil
}

// GiveUp leaves to another process what was exported.
func (s *Slot) GiveUp() {
	if h, ok := s.bare.(heritable); ok {
		h.giveUp()
	}
}

// Import continues the HCA of another process, before the first Open. Await are the numbers of the queue pairs, without
// which the HCA should not receive yet.
func (s *Slot) Import(r *capsule.Reader, await []hca.QPN) error {
	var h handedSlot
	err := r.ValueIfAny("slot", &h)
	s.mu.Lock()
	s.members = r.Descriptors("memberships")
	s.mu.Unlock()
	if f := s.Faults; f != nil {
		f.mu.Lock()
		f.plugged = min(h.Plugged, PluggedOther)
		f.mu.Unlock()
	}
	if to, ok := s.bare.(heritable); ok && err == nil {
		return to.importFrom(r, await)
	}
	return err
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
	if err := e.dev.Pause(); !errors.Is(err, hca.ErrClosed) {
		return err
	}
	return nil
}

func (h *softHCA) resume() {
	if e := h.engine.Load(); e != nil {
		e.dev.Resume()
	}
}

func (h *softHCA) exportTo(w *capsule.Writer) error {
	var drops []uint32
	if e := h.engine.Load(); e != nil {
		for _, lane := range e.lanes {
			drops = append(drops, lane.Drops())
		}
		e.lanes[0].ExportMemberships(w)
	}
	w.Put("peer_names", h.peers.lookedUp())
	return h.port.Export(w, drops)
}

func (h *softHCA) giveUp() {
	h.port.GiveUp()
	h.fast.giveUp()
	if e := h.engine.Load(); e != nil {
		e.lanes[0].GiveUpMemberships()
	}
}

func (h *softHCA) importFrom(r *capsule.Reader, await []hca.QPN) error {
	var names map[string][]netip.Addr // of the peers that are configured by name, as last looked up
	if err := r.ValueIfAny("peer_names", &names); err != nil {
		return err
	}
	h.await = await
	h.peers.remember(names)
	return h.port.Import(r)
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
