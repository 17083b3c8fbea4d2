package softqp

import (
	"net/netip"

	"ipoibd/hca"
)

// GID is one entry of the port's GID table; a zero Addr is an empty entry.
type GID struct {
	Addr       netip.Addr // IPv4 in its 4-byte form, IPv6 without a zone
	MaxPayload int        // bytes of one UD message
}

// Env is what the engine knows of its surroundings: an immutable snapshot that
// the shell replaces.
type Env struct {
	Up        bool
	SrcPort   uint16 // of everything sent; the ICRC covers it
	GIDs      []GID
	PKeys     []hca.PKey
	Replicate bool // multicast goes to a list of peers, one by one
	Memory    *Memory
}

// source returns the GID entry to send from to an address of dst's family.
func (e *Env) source(index int, dst netip.Addr) (*GID, bool) {
	if index < 0 || index >= len(e.GIDs) {
		return nil, false
	}
	g := &e.GIDs[index]
	return g, g.Addr.IsValid() && g.Addr.Is4() == dst.Is4()
}

// Own reports whether a is an address of this port.
func (e *Env) Own(a netip.Addr) bool {
	for i := range e.GIDs {
		if e.GIDs[i].Addr == a {
			return a.IsValid()
		}
	}
	return false
}

// pkey returns the table's entry, 0 (which matches nothing) outside of it.
func (e *Env) pkey(index uint16) hca.PKey {
	if int(index) >= len(e.PKeys) {
		return 0
	}
	return e.PKeys[index]
}
