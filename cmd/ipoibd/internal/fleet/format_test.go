package fleet

import (
	"testing"

	"ipoibd/link/kernel/capsule/capsuletest"
)

// The format of what is handed over outlives versions.
func TestFormat(t *testing.T) {
	capsuletest.Check(t, "fleet", state{})
	capsuletest.Check(t, "device", deviceState{})
}
