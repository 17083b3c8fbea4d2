//go:build vm && cgo && linux

package guard_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs/verbstest"
)

// What the contract says holds for a guarded device of the kernel, which is what
// the daemon has. One underlay is enough: the guard does not see it.
func TestConformanceOfRealDevice(t *testing.T) {
	hcatest.Run(t, verbstest.IPv4.Harness(t, func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) }))
}
