package vm

import (
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// verbsLimit bounds the conformance suite: ten times its duration on an idle
// machine.
const verbsLimit = 5 * time.Minute

// rdmaLimit bounds the tests of hca/rdma in the same way.
const rdmaLimit = 5 * time.Minute

// The tests of hca/rdma, which manages the kernel's devices without libibverbs, pass
// with a real kernel.
func TestRDMA(t *testing.T) {
	binary := guest.TestBinary(t, "ipoibd/hca/rdma", "-tags=vm")
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, underMTU)
		g := guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0, Bridged: true}}})
		g.RunTests(t, binary, rdmaLimit, []string{"TEST_IPOIBD_RDMA_NETDEV=eth0"}, "-test.run=^TestVM")
	})
}

// The backend for real HCAs passes its tests on two rxe devices. It also fulfils the
// contract when guarded, as in the daemon, and with the race detector.
func TestVerbs(t *testing.T) {
	bare, guarded := guest.TestBinary(t, "ipoibd/hca/verbs", "-tags=vm"), guest.TestBinary(t, "ipoibd/hca/guard", "-tags=vm", "-race")
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		g := guest.Boot(t, guest.Spec{Series: series})
		cable(g)
		addRxe(inGuest{g}, rxe0, cableA)
		addRxe(inGuest{g}, "rxe1", cableB)
		env := []string{"TEST_IPOIBD_VERBS_A=rxe0", "TEST_IPOIBD_VERBS_B=rxe1"}
		g.RunTests(t, bare, verbsLimit, env)
		g.RunTests(t, guarded, verbsLimit, env, "-test.run=^TestConformanceOfRealDevice$")
	})
}

// bpfLimit bounds the tests of the eBPF programs in the same way.
const bpfLimit = 5 * time.Minute

// The eBPF programs load on older kernels, and do there what they do on that of this machine.
func TestBPF(t *testing.T) {
	binary := guest.TestBinary(t, "ipoibd/bpf")
	if guest.Enter(t) {
		return
	}
	args := []string{"-test.skip=^TestGeneratedFilesAreCurrent$"}
	if !guest.Soak() {
		args = append(args, "-packets=1000") // a fifth of what this machine's kernel gets
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		g := guest.Boot(t, guest.Spec{Series: series})
		g.RunTests(t, binary, bpfLimit, nil, args...)
	})
}
