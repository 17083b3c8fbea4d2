package soft

import "net/netip"

// idHabits notes which sources send IPv4 identifications of 0 to 63 only, as
// software HCAs of this program do, where the receiver cannot see them. A
// datagram of such a source whose ICRC matches only with another identification
// is damaged: the free choice of 16 bits explains one damage in 2^16. The zero
// value has noted nothing.
type idHabits [idSources]idHabit

type idHabit struct {
	src [4]byte
	low uint8 // datagrams with low identifications in a row
}

// idSources bounds the sources remembered, one for each value of the address's
// last byte: others of that value take its place, and are trusted until they have
// shown their own habit.
const idSources = 256

// idHabitual is how many low identifications in a row make a habit. A source that
// draws its identifications at random sends as many once in 2^40.
const idHabitual = 4

// low notes a datagram with a low identification.
func (h *idHabits) low(src netip.Addr) {
	k := h.slot(src)
	if a := src.As4(); k.src != a {
		*k = idHabit{src: a}
	}
	k.low = min(k.low+1, idHabitual)
}

// unusual reports whether src has the habit of low identifications, and notes that
// it broke it: so one that changed its ways loses one datagram.
func (h *idHabits) unusual(src netip.Addr) bool {
	k := h.slot(src)
	if k.src != src.As4() {
		return false
	}
	habit := k.low == idHabitual
	k.low = 0
	return habit
}

// intact reports whether the last datagrams of an IPv4 source arrived intact, so
// that no NAT translates it.
func (h *idHabits) intact(src netip.Addr) bool {
	k := h.slot(src)
	return k.src == src.As4() && k.low > 0
}

// slot returns the place of an IPv4 source, which may hold another source. Only
// low gives it to src: a damaged or forged datagram must not erase a habit.
func (h *idHabits) slot(src netip.Addr) *idHabit { return &h[src.As4()[3]] }
