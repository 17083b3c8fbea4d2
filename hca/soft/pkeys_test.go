package soft

import (
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// A new table has each key once, and a key that stays keeps its index.
func TestPKeysKeepTheirIndexes(t *testing.T) {
	keys := rapid.SliceOfDistinct(rapid.SampledFrom([]hca.PKey{0xffff, 0x8001, 0x8002, 0x8003, 0x8004}), rapid.ID[hca.PKey])
	rapid.Check(t, func(t *rapid.T) {
		table, most := keys.Draw(t, "first"), 0
		for range 5 {
			next := keys.Draw(t, "next")
			was := slices.Clone(table)
			table = retable(was, next)
			most = max(most, len(was), len(next))
			if len(table) > most {
				t.Fatalf("%v has %d entries; %d are enough", table, len(table), most)
			}
			for _, k := range next {
				if i := slices.Index(was, k); i >= 0 && table[i] != k {
					t.Fatalf("%v to %v: %v", was, next, table)
				}
			}
			got := slices.DeleteFunc(slices.Clone(table), func(k hca.PKey) bool { return k == 0 })
			slices.Sort(got)
			want := slices.Sorted(slices.Values(next))
			if !slices.Equal(got, want) {
				t.Fatalf("%v to %v: %v", was, next, table)
			}
		}
	})
}

// A new table is reported once, and shows at the port; the same table again is no change. A closed
// device has no table.
func TestSetPKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.PKeys = []hca.PKey{0x8001, hca.PKeyDefault} })
		for range 2 {
			r.dev.SetPKeys([]hca.PKey{hca.PKeyDefault, 0x8002, 0x8003})
		}
		ev, err := r.dev.NextEvent(t.Context())
		if want := (hca.AsyncEvent{Type: hca.EventPKeyChange, On: hca.ObjectID{Kind: hca.KindPort, Num: 1}}); err != nil || ev != want {
			t.Errorf("event %+v, %v", ev, err)
		}
		if ev, more := r.dev.events.pop(); more {
			t.Errorf("another event: %+v", ev)
		}
		attr, err := r.dev.QueryPort(1)
		if want := []hca.PKey{0x8002, hca.PKeyDefault, 0x8003}; err != nil || !slices.Equal(attr.PKeys, want) {
			t.Errorf("table %v, %v; want %v", attr.PKeys, err, want)
		}
		r.close()
		r.dev.SetPKeys([]hca.PKey{0x8004})
	})
}
