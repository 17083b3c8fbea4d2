package iface

import "testing"

func TestMTUFit(t *testing.T) {
	for _, c := range []struct {
		name                                 string
		ours, have, configured, largest, fit int
	}{
		{"first time", 1500, 1500, 0, 1444, 1444},
		{"first time, large underlay", 1500, 1500, 0, 4092, 4092},
		{"configured", 1500, 1500, 1280, 1444, 1280},
		{"configured too large", 1500, 1500, 2044, 1444, 1444},
		{"operator lowered it", 1444, 1300, 0, 1444, 1300},
		{"operator raised it to what fits", 0, 1444, 0, 1444, 1444},
		{"operator asked for too much", 1444, 9000, 0, 1444, 1444},
		{"operator raised above the configured", 1280, 1400, 1280, 1444, 1400},
		{"underlay was cut", 4092, 4092, 0, 1444, 1444},
		{"underlay was given back", 1444, 1444, 0, 4092, 4092},
		{"underlay cut below the operator's", 4092, 2000, 0, 1444, 1444},
		{"adopted below the largest", 0, 1400, 0, 1444, 1400},
		{"adopted at the largest", 0, 1444, 0, 1444, 1444},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := (mtuState{c.ours}).fit(c.have, c.configured, c.largest); got != c.fit {
				t.Errorf("got %d, want %d", got, c.fit)
			}
		})
	}
}
