package softqp

import (
	"slices"

	"ipoibd/hca"
)

// MaxSGE is the maximum length of a scatter/gather list.
const MaxSGE = 4

// lkeyBits is the width of the low part of an L_Key. The part counts the regions that
// have used the slot, so that the key of an earlier region is invalid. The rest is the
// index of the slot.
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

// With returns a copy of the table with r added, and the L_Key of r.
func (m *Memory) With(r Region) (*Memory, uint32) {
	next := &Memory{slots: slices.Clone(m.slots)}
	i := slices.IndexFunc(next.slots, func(s slot) bool { return !s.used })
	if i < 0 {
		i = len(next.slots)
		next.slots = append(next.slots, slot{lkey: uint32(i) << lkeyBits})
	}
	const count = 1<<lkeyBits - 1 // the low part, which is never 0
	lkey := next.slots[i].lkey
	lkey = lkey&^count | (lkey&count)%count + 1
	next.slots[i] = slot{lkey: lkey, used: true, Region: r}
	return next, lkey
}

// Without returns a copy of the table without the region of lkey.
func (m *Memory) Without(lkey uint32) *Memory {
	next := &Memory{slots: slices.Clone(m.slots)}
	if i := int(lkey >> lkeyBits); i < len(next.slots) && next.slots[i].lkey == lkey {
		next.slots[i] = slot{lkey: lkey}
	}
	return next
}

// Bytes returns the memory that s refers to. It returns false unless the memory lies
// inside one region of the protection domain that permits the access.
func (m *Memory) Bytes(pd uint32, s *hca.SGE, write bool) ([]byte, bool) {
	i := int(s.LKey >> lkeyBits)
	if i >= len(m.slots) {
		return nil, false
	}
	r := &m.slots[i]
	if !r.used || r.lkey != s.LKey || r.PD != pd || write && !r.Write {
		return nil, false
	}
	off, size := s.Addr-r.Base, uint64(len(r.Mem)) // an address below Base wraps to a large offset
	if off > size || uint64(s.Length) > size-off {
		return nil, false
	}
	return r.Mem[off : off+uint64(s.Length)], true
}

// pieces is a resolved scatter/gather list. Entries of length 0 are left out, because
// they refer to no memory.
type pieces struct {
	vec  [MaxSGE][]byte
	n    int
	size int // total bytes
}

func (p *pieces) list() [][]byte { return p.vec[:p.n] }

// find resolves a list of at most MaxSGE entries into p. It returns false if an entry
// refers to memory that may not be accessed.
func (p *pieces) find(m *Memory, pd uint32, sges []hca.SGE, write bool) bool {
	p.n, p.size = 0, 0
	for i := range sges {
		if sges[i].Length == 0 {
			continue
		}
		b, ok := m.Bytes(pd, &sges[i], write)
		if !ok {
			return false
		}
		p.vec[p.n] = b
		p.n++
		p.size += len(b)
	}
	return true
}

// slice sets p to n bytes of all, from off on.
func (p *pieces) slice(all *pieces, off, n int) {
	p.n, p.size = 0, n
	for _, b := range all.list() {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		if n == 0 {
			return
		}
		b = b[off:min(len(b), off+n)]
		off, n = 0, n-len(b)
		p.vec[p.n] = b
		p.n++
	}
}

// peek copies the first bytes of p to dst and returns how many.
func (p *pieces) peek(dst []byte) (n int) {
	for _, b := range p.list() {
		n += copy(dst[n:], b)
	}
	return n
}

// scatter writes consecutive pieces to a list, which must be long enough for all.
type scatter struct {
	dst [][]byte
	at  []byte // the rest of the current entry
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
