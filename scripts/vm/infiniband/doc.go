// Package infiniband holds the tests of guests on an InfiniBand subnet: the HCA of package ibwire under the kernel's
// RDMA stack, the switch and the OpenSM of package sm. `make test-vm` runs them, except for TestDaemonsOnASubnet, which
// `make test-sm` runs.
//
// The wires of the guests are sockets, so the tests need neither network namespaces nor root, and take no lock of
// this machine's network.
//
// [TestKernelIPoIB] shows that the subnet works as the kernel expects: its own IPoIB runs on it. [TestConformance]
// runs the conformance suite of package hcatest on the HCA, by libibverbs. [TestModule] is about the HCA itself: its
// parameters, malformed frames, and removal.
//
// [TestDaemonsOnASubnet] runs three daemons in one guest: joins as OpenSM sees them, and what the daemon says of a wrong
// partition or port. [TestDaemonAndKernelIPoIB] runs the daemon in one guest and the kernel's IPoIB in the other:
// traffic, neighbours, failures of every part, and a bridge. In [TestPartitionsAndPaths] they have interfaces in several
// partitions, and ports with two LIDs. The switch's counters are the witness of what an interface cannot show: SLs,
// P_Keys and path bits.
package infiniband
