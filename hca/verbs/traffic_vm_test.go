//go:build vm && cgo && linux

package verbs_test

import (
	"testing"

	"ipoibd/hca/hcatest/station"
)

// pair returns two stations, one on each device.
func (u underlay) pair(t testing.TB) (a, b *station.Station) {
	t.Helper()
	return u.station(t, envA), u.station(t, envB)
}

func (u underlay) station(t testing.TB, env string) *station.Station {
	t.Helper()
	host := u.host(t, env)
	return station.New(t, host.Dev, host.SGIDIndex)
}

// A batch costs no allocation on its way through any of the verbs of the data path.
func TestDataPathDoesNotAllocate(t *testing.T) {
	a, b := underlays[0].pair(t)
	sends, recvs := a.Towards(b, 8, 100), b.Receives(8)
	if n := testing.AllocsPerRun(50, func() { a.Carry(b, sends, recvs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
