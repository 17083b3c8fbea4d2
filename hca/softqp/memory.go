package softqp

import (
	"slices"

	"ipoibd/hca"
)

// MaxSGE is the longest scatter/gather list that the engine takes: what a
// gather list of the network carries besides header and trailer.
const MaxSGE = 4

// lkeyBits is the low part of an L_Key: a count of the slot's owners, so that
// a key kept too long names nothing. The rest is the slot.
const lkeyBits = 8

// Region is registered memory.
type Region struct {
	PD    uint32 // protection domain
	Base  uint64 // address of Mem[0]
	Mem   []byte // outside the Go heap
	Write bool   // a receive may write it
}

type slot struct {
	lkey uint32
	used bool
	Region
}

// Memory is an immutable table of registered memory by L_Key. The zero value
// is empty.
type Memory struct{ slots []slot }

// With returns a table that has r besides, and its L_Key.
func (m *Memory) With(r Region) (*Memory, uint32) {
	next := &Memory{slots: slices.Clone(m.slots)}
	i := slices.IndexFunc(next.slots, func(s slot) bool { return !s.used })
	if i < 0 {
		i = len(next.slots)
		next.slots = append(next.slots, slot{lkey: uint32(i) << lkeyBits})
	}
	lkey := nextKey(next.slots[i].lkey)
	next.slots[i] = slot{lkey: lkey, used: true, Region: r}
	return next, lkey
}

// nextKey counts up the owner part of an L_Key; 0 is never an owner.
func nextKey(lkey uint32) uint32 {
	const mask = 1<<lkeyBits - 1
	return lkey&^mask | (lkey&mask)%mask + 1
}

// Without returns a table that lacks the region of lkey.
func (m *Memory) Without(lkey uint32) *Memory {
	next := &Memory{slots: slices.Clone(m.slots)}
	if i := int(lkey >> lkeyBits); i < len(next.slots) && next.slots[i].lkey == lkey {
		next.slots[i] = slot{lkey: lkey}
	}
	return next
}

// bytes returns the memory that s names, if it lies inside one region of the
// protection domain that may be used so.
func (m *Memory) bytes(pd uint32, s *hca.SGE, write bool) ([]byte, bool) {
	i := int(s.LKey >> lkeyBits)
	if i >= len(m.slots) {
		return nil, false
	}
	r := &m.slots[i]
	if !r.used || r.lkey != s.LKey || r.PD != pd || write && !r.Write {
		return nil, false
	}
	off, size := s.Addr-r.Base, uint64(len(r.Mem)) // wraps to a large value below Base
	if off > size || uint64(s.Length) > size-off {
		return nil, false
	}
	return r.Mem[off : off+uint64(s.Length)], true
}

// pieces is a scatter/gather list whose memory was found. Entries of length 0
// are left out: they name no memory.
type pieces struct {
	vec  [MaxSGE][]byte
	n    int
	size int // bytes in all
}

func (p *pieces) list() [][]byte { return p.vec[:p.n] }

// find fills p from a list of at most MaxSGE entries; false when an entry
// names memory that may not be used.
func (p *pieces) find(m *Memory, pd uint32, sges []hca.SGE, write bool) bool {
	p.n, p.size = 0, 0
	for i := range sges {
		if sges[i].Length == 0 {
			continue
		}
		b, ok := m.bytes(pd, &sges[i], write)
		if !ok {
			return false
		}
		p.vec[p.n] = b
		p.n++
		p.size += len(b)
	}
	return true
}

// scatter writes one piece after the other over a list that holds them all.
type scatter struct {
	dst [][]byte
	at  []byte // what is left of the entry under way
}

func (s *scatter) write(b []byte) {
	for len(b) > 0 {
		if len(s.at) == 0 {
			s.at, s.dst = s.dst[0], s.dst[1:]
		}
		n := copy(s.at, b)
		s.at, b = s.at[n:], b[n:]
	}
}
