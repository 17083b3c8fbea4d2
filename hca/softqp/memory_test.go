package softqp

import (
	"testing"

	"ipoibd/hca"
)

func TestQueueOrderOverItsEnd(t *testing.T) {
	q := newQueue[int](3)
	next, want := 0, 0
	for range 10 {
		for !q.full() {
			*q.push() = next
			next++
		}
		for i := range q.len() {
			if *q.at(i) != want+i {
				t.Fatalf("entry %d is %d, want %d", i, *q.at(i), want+i)
			}
		}
		q.pop()
		q.pop()
		want += 2
	}
	q.clear()
	if q.len() != 0 || q.full() {
		t.Error("not empty after clear")
	}
}

// A key is valid only for its region, while that exists, and inside its bounds.
func TestMemory(t *testing.T) {
	m, a := (&Memory{}).With(Region{PD: 1, Base: 1000, Mem: make([]byte, 100)})
	m, b := m.With(Region{PD: 1, Base: 5000, Mem: make([]byte, 100), Write: true})
	for name, c := range map[string]struct {
		pd    uint32
		sge   hca.SGE
		write bool
		ok    bool
	}{
		"whole":          {1, hca.SGE{Addr: 1000, Length: 100, LKey: a}, false, true},
		"last byte":      {1, hca.SGE{Addr: 1099, Length: 1, LKey: a}, false, true},
		"nothing at end": {1, hca.SGE{Addr: 1100, Length: 0, LKey: a}, false, true},
		"past end":       {1, hca.SGE{Addr: 1099, Length: 2, LKey: a}, false, false},
		"before":         {1, hca.SGE{Addr: 999, Length: 1, LKey: a}, false, false},
		"far":            {1, hca.SGE{Addr: 1<<64 - 1, Length: 1<<32 - 1, LKey: a}, false, false},
		"other's range":  {1, hca.SGE{Addr: 5000, Length: 1, LKey: a}, false, false},
		"other domain":   {2, hca.SGE{Addr: 1000, Length: 1, LKey: a}, false, false},
		"read only":      {1, hca.SGE{Addr: 1000, Length: 1, LKey: a}, true, false},
		"writable":       {1, hca.SGE{Addr: 5000, Length: 1, LKey: b}, true, true},
		"key 0":          {1, hca.SGE{Addr: 1000, Length: 1}, false, false},
		"key too large":  {1, hca.SGE{Addr: 1000, Length: 1, LKey: 1<<32 - 1}, false, false},
	} {
		got, ok := m.Bytes(c.pd, &c.sge, c.write)
		if ok != c.ok || ok && len(got) != int(c.sge.Length) {
			t.Errorf("%s: %d bytes, %v, want %d, %v", name, len(got), ok, c.sge.Length, c.ok)
		}
	}
}

func TestMemoryKeysAreNotReused(t *testing.T) {
	m, first := (&Memory{}).With(Region{Mem: make([]byte, 1)})
	seen := map[uint32]bool{first: true}
	for range 1<<lkeyBits - 2 {
		old := m
		m = m.Without(first)
		if _, ok := m.Bytes(0, &hca.SGE{Length: 1, LKey: first}, false); ok {
			t.Fatalf("key %#x is valid after its region was removed", first)
		}
		if _, ok := old.Bytes(0, &hca.SGE{Length: 1, LKey: first}, false); !ok {
			t.Fatal("the old table changed")
		}
		m, first = m.With(Region{Mem: make([]byte, 1)})
		if seen[first] || first == 0 {
			t.Fatalf("key %#x was assigned twice", first)
		}
		seen[first] = true
	}
	if m.Without(12345) == m || len(m.Without(12345).slots) != 1 {
		t.Error("removing an unknown key changed the table")
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for r := Passed; r < NumReason; r++ {
		if seen[r.String()] {
			t.Errorf("reason %d is named %q", r, r)
		}
		seen[r.String()] = true
	}
}
