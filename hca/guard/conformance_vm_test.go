//go:build vm && cgo && linux

package guard_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs/verbstest"
)

// A guarded device of the kernel, as the daemon uses it, passes the suite. One underlay is
// enough, because the guard does not depend on it.
func TestConformanceOfRealDevice(t *testing.T) {
	hcatest.Run(t, verbstest.IPv4.Harness(t, func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) }))
}
