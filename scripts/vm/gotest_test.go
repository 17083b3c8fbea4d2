package vm

import (
	"os"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
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

// rdmaLimit is likewise.
const rdmaLimit = 5 * time.Minute

// What is known and done of the kernel's devices without libibverbs is as the
// kernel has it.
func TestRDMA(t *testing.T) {
	binary := compiled(t, "ipoibd/hca/rdma", "-tags=vm")
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, underMTU)
		g := guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0, Bridged: true}}})
		g.RunTests(t, binary, rdmaLimit, []string{"IPOIBD_RDMA_NETDEV=eth0"}, "-test.run=^TestVM")
	})
}

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
