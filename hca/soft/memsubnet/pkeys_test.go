package memsubnet

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
)

// The software HCA has each key at the index of the port's table, whatever tables precede it.
func TestPKeyTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := New(memfabric.New(1), SM{}).Attach("a", hca.GUID{1}, 1)
		d, err := p.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		table := rapid.SliceOfN(rapid.SampledFrom([]hca.PKey{0, 0, 1, 2, 3, 0x8001, 0x7fff, 0xffff}), 0, 8)
		for _, keys := range rapid.SliceOfN(table, 1, 5).Draw(t, "tables") {
			for i, k := range keys {
				if slices.Contains(keys[:i], k) {
					keys[i] = 0
				}
			}
			p.Change(func(a *hca.PortAttr) { a.PKeys = keys })
			a, err := d.soft.QueryPort(1)
			if err != nil || !slices.Equal(used(a.PKeys), used(keys)) {
				t.Fatalf("table %x, want %x (%v)", a.PKeys, keys, err)
			}
		}
	})
}
