//go:build vm && cgo && linux

package verbs_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/verbs/verbstest"
)

// newStation returns a station on the device named by an environment variable.
func newStation(t testing.TB, env string) *station.Station {
	t.Helper()
	host := verbstest.IPv6.Host(t, env)
	return station.New(t, host.Dev, host.SGIDIndex)
}

// No verb of the data path allocates for a batch.
func TestDataPathDoesNotAllocate(t *testing.T) {
	a, b := newStation(t, verbstest.EnvA), newStation(t, verbstest.EnvB)
	sends, recvs := a.Towards(b, 8, 100), b.Receives(8)
	if n := testing.AllocsPerRun(50, func() { a.Carry(b, sends, recvs) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	large, all := []hca.SendWR{a.Large(b)}, b.Receives(station.Depth)
	if n := testing.AllocsPerRun(20, func() { a.Carry(b, large, all) }); n != 0 {
		t.Errorf("large sends: %v allocations, want none", n)
	}
}
