package device_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
)

// reporting is a backend with the optional reports.
type reporting struct{ hca.Device }

func (reporting) Attr() hca.DeviceAttr { return hca.DeviceAttr{} }
func (reporting) WireBlocked() uint64  { return 7 }
func (reporting) Strays() hca.Stray    { return hca.Stray{Count: 3, SrcQPN: 5} }

// plain is one without them.
type plain struct{ hca.Device }

func (plain) Attr() hca.DeviceAttr { return hca.DeviceAttr{} }

// The optional reports of a backend pass through the wrappers; they stay at zero
// where the backend has none.
func TestOptionalReportsPassThrough(t *testing.T) {
	for _, c := range []struct {
		backend hca.Device
		blocked uint64
		stray   hca.Stray
	}{
		{reporting{}, 7, hca.Stray{Count: 3, SrcQPN: 5}},
		{plain{}, 0, hca.Stray{}},
	} {
		var dev hca.Device = guard.Wrap(faults.Wrap(c.backend, faults.Options{}), guard.Options{})
		if n := dev.(hca.WireReporter).WireBlocked(); n != c.blocked {
			t.Errorf("%T: wire blocked %d times, want %d", c.backend, n, c.blocked)
		}
		if s := dev.(hca.StrayReporter).Strays(); s != c.stray {
			t.Errorf("%T: strays %+v, want %+v", c.backend, s, c.stray)
		}
	}
}
