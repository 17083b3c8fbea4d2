//go:build vm && cgo && linux

package verbs_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs/verbstest"
)

func TestConformance(t *testing.T) {
	bare := func(d hca.Device) hca.Device { return d }
	for _, u := range verbstest.Underlays(t) {
		t.Run(u.Name, func(t *testing.T) { hcatest.Run(t, u.Harness(t, bare)) })
	}
}
