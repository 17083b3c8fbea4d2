package iface

// mtuState decides the interface's MTU. A request of the operator outlives an underlay
// that is too small for it for a while.
type mtuState struct {
	set   int  // that we gave the interface, 0: none yet
	wish  int  // that is requested, 0: the largest that fits
	fresh bool // wish was found on the interface and not yet compared with what fits
	cut   int  // the request that was reported as too large, 0: none
}

// found notes the MTU that the interface has at the start. That of a new interface is no
// request; that of an adopted one is the operator's, unless another one is configured (0:
// none is).
func (s *mtuState) found(mtu, configured int, adopted bool) {
	*s = mtuState{set: mtu, wish: configured}
	if adopted && configured == 0 {
		s.wish, s.fresh, s.cut = mtu, true, mtu
	}
}

// changed notes an MTU that the interface has now: if we did not set it, the operator
// requests it.
func (s *mtuState) changed(mtu int) {
	if mtu != s.set {
		s.set, s.wish, s.fresh = mtu, mtu, true
	}
}

// fit returns the MTU that the interface is to have, and a request that is too large, once.
// An operator who requests the largest or more gets the largest, also when that changes.
func (s *mtuState) fit(largest int) (mtu, tooLarge int) {
	if s.wish <= largest {
		s.cut = 0
	} else if s.wish != s.cut {
		s.cut, tooLarge = s.wish, s.wish
	}
	if s.fresh && s.wish >= largest {
		s.wish = 0
	}
	s.fresh = false
	if s.wish == 0 {
		return largest, tooLarge
	}
	return min(s.wish, largest), tooLarge
}
