package iface

// mtuState is what decides about the interface's MTU. What the operator asked
// for outlives an underlay that is too small for it for a while.
type mtuState struct {
	set   int  // what the interface has by our doing, 0: nothing yet
	wish  int  // what is asked for, 0: the largest that fits
	fresh bool // wish was found on the interface and not yet compared with what fits
}

// found notes the MTU that the interface has at the start. That of a new one is
// nobody's wish; that of an adopted one is the operator's, unless another one is
// configured (0: none is).
func (s *mtuState) found(mtu, configured int, adopted bool) {
	*s = mtuState{set: mtu, wish: configured}
	if adopted && configured == 0 {
		s.wish, s.fresh = mtu, true
	}
}

// changed notes an MTU that the interface has come to have: where it is not what
// we set, the operator asks for it.
func (s *mtuState) changed(mtu int) {
	if mtu != s.set {
		s.set, s.wish, s.fresh = mtu, mtu, true
	}
}

// fit returns the MTU that the interface is to have. Whoever asked for the
// largest or for more gets the largest, also when that changes.
func (s *mtuState) fit(largest int) int {
	if s.fresh && s.wish >= largest {
		s.wish = 0
	}
	s.fresh = false
	if s.wish == 0 {
		return largest
	}
	return min(s.wish, largest)
}
