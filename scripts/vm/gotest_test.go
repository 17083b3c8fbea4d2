package vm

import (
	"os"
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// binaryEnv hands a compiled test binary on to tests re-executed in their own
// namespaces.
const binaryEnv = "IPOIBD_VM_TESTS"

// compiled has the tests of a package compiled, once, by the parent.
func compiled(t *testing.T, pkg string, flags ...string) string {
	t.Helper()
	if path := os.Getenv(binaryEnv); path != "" {
		return path
	}
	path := guest.TestBinary(t, pkg, flags...)
	t.Setenv(binaryEnv, path)
	return path
}

// verbsLimit bounds the conformance suite: ten times what it takes on an idle
// machine.
const verbsLimit = 5 * time.Minute

// The backend for real HCAs passes its tests on two rxe devices.
func TestVerbs(t *testing.T) {
	binary := compiled(t, "ipoibd/hca/verbs", "-tags=vm")
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		g := guest.Boot(t, guest.Spec{Series: series})
		cable(g)
		addRxe(inGuest{g}, rxe0, cableA)
		addRxe(inGuest{g}, "rxe1", cableB)
		g.RunTests(t, binary, verbsLimit, []string{"IPOIBD_VERBS_A=rxe0", "IPOIBD_VERBS_B=rxe1"})
	})
}
