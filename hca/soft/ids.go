package soft

import "net/netip"

// idHabits notes which sources send only IPv4 identifications of 0 to 63, as this
// program's software HCAs do. The receiver does not see the identification and finds
// it by the ICRC. If the ICRC of a datagram from such a source matches only with
// another identification, the datagram counts as damaged: with 16 bits to choose
// freely, one damaged datagram in 2^16 would pass. The zero value is ready to use.
type idHabits [idSources]idHabit

type idHabit struct {
	src [4]byte
	low uint8 // datagrams with low identifications in a row
}

// idSources bounds the remembered sources: one for each value of the address's last
// byte. Another source with the same value replaces it, and is trusted until it has
// shown its own habit.
const idSources = 256

// idHabitual is how many low identifications in a row make a habit. A source that counts its
// identifications sends 64 of them each time its counter wraps; Linux has a counter for each
// destination, of which three may wrap at once here: for our address, for the group, and for
// another address of ours. A source that draws its identifications at random never sends as
// many.
const idHabitual = 3*64 + 1

// low notes a datagram with a low identification.
func (h *idHabits) low(src netip.Addr) {
	k := h.slot(src)
	if a := src.As4(); k.src != a {
		*k = idHabit{src: a}
	}
	k.low = min(k.low+1, idHabitual)
}

// unusual reports whether src has the habit of low identifications, and notes that src
// broke it. So a source that changes its habit loses one datagram.
func (h *idHabits) unusual(src netip.Addr) bool {
	k := h.slot(src)
	if k.src != src.As4() {
		return false
	}
	habit := k.low == idHabitual
	k.low = 0
	return habit
}

// intact reports whether recent datagrams of an IPv4 source arrived intact, so that no
// NAT translates its address.
func (h *idHabits) intact(src netip.Addr) bool {
	k := h.slot(src)
	return k.src == src.As4() && k.low > 0
}

// slot returns the place of an IPv4 source, which may hold another source. Only low
// gives it to src: a datagram whose ICRC is wrong must not erase a habit.
func (h *idHabits) slot(src netip.Addr) *idHabit { return &h[src.As4()[3]] }
