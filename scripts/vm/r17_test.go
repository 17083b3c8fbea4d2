package vm

import (
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// r17Limit bounds the resets of one kernel: ten times what they take on an idle
// machine.
const r17Limit = 3 * time.Minute

// Resetting a real device, by reopening it and by deleting and adding it, needs no
// file on a disk.
func TestR17RealDeviceReset(t *testing.T) {
	binary := guest.TestBinary(t, "ipoibd/cmd/ipoibd/internal/daemon", "-tags=vm")
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		g := guest.Boot(t, guest.Spec{Series: series})
		g.RunTests(t, binary, r17Limit, nil, "-test.run=^TestR17RealDeviceReset$")
	})
}
