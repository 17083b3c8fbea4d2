package softqp

import (
	"net/netip"

	"ipoibd/hca"
)

// GID is one entry of the port's GID table; a zero Addr is an empty entry.
type GID struct {
	Addr       netip.Addr // IPv4 in its 4-byte form, IPv6 without a zone
	MaxPayload int        // bytes of one UD message, at most hca.MaxMTU
}

// Env holds the port's attributes and its memory: an immutable snapshot that the shell
// replaces.
type Env struct {
	Up        bool
	SrcPort   uint16 // UDP source port of everything sent; the ICRC covers it
	GIDs      []GID
	PKeys     []hca.PKey
	Replicate bool // multicast is sent to each peer of a list
	Memory    *Memory
}

// source returns the GID entry at index. It returns false if the entry cannot be the
// source for dst: it is empty or of the other family.
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

// PKey returns the P_Key at index, or 0, which matches no key, if index is out of range.
func (e *Env) PKey(index uint16) hca.PKey {
	if int(index) >= len(e.PKeys) {
		return 0
	}
	return e.PKeys[index]
}
