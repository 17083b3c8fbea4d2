package device_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
)

// reporting is a backend with the optional reports. The begin and the end of notifications send one.
type reporting struct{ hca.Device }

func (reporting) Attr() hca.DeviceAttr { return hca.DeviceAttr{} }
func (reporting) WireBlocked() uint64  { return 7 }
func (reporting) Strays() (hca.Strays, bool) {
	return hca.Strays{{Number: 3, SrcQPN: 5}}, true
}

func (reporting) NotifyStrays(f func()) func() {
	f()
	return f
}

// plain is a backend without them.
type plain struct{ hca.Device }

func (plain) Attr() hca.DeviceAttr { return hca.DeviceAttr{} }

// The wrappers pass on the optional reports of a backend. They return zero for a backend
// without them.
func TestOptionalReportsPassThrough(t *testing.T) {
	for _, c := range []struct {
		backend hca.Device
		blocked uint64
		strays  hca.Strays
		reports bool
	}{
		{reporting{}, 7, hca.Strays{{Number: 3, SrcQPN: 5}}, true},
		{plain{}, 0, hca.Strays{}, false},
	} {
		dev := guard.Wrap(faults.Wrap(c.backend, faults.Options{}), guard.Options{})
		if n := dev.WireBlocked(); n != c.blocked {
			t.Errorf("%T: wire blocked %d times, want %d", c.backend, n, c.blocked)
		}
		if s, ok := dev.Strays(); s != c.strays || ok != c.reports {
			t.Errorf("%T: strays %+v, %v, want %+v, %v", c.backend, s, ok, c.strays, c.reports)
		}
		notified := 0
		dev.NotifyStrays(func() { notified++ })()
		if got := notified == 2; got != c.reports {
			t.Errorf("%T: %d notifications of strays, want any %v", c.backend, notified, c.reports)
		}
	}
}
