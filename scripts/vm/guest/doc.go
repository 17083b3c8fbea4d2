// Package guest boots small virtual machines for tests, with a Debian kernel
// that has the RDMA stack and its Soft-RoCE driver. QEMU emulates the processor
// in software and needs no KVM, so guests also run if this machine is a virtual
// one; they are about twenty times slower than this machine.
//
// # A test
//
//	func TestMain(m *testing.M) { os.Exit(guest.Main(m, kernel.AMD64)) }
//
//	func TestX(t *testing.T) {
//		if guest.Enter(t) {
//			return // the child, in namespaces of its own, has run it
//		}
//		segment := nstest.NewSegment(t, 1500)
//		g := guest.Boot(t, guest.Spec{Series: "6.1", NICs: []guest.NIC{{Segment: segment, Host: 0}}})
//		g.Run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
//	}
//
// # What is in a guest
//
// [Main] makes a kit once for all tests of a package: for each series of kernels
// (package kernel) an image (package image) with ipoibd built from this tree, the
// programs of this machine that tests use (iproute2 with rdma, ping, iperf3,
// ibverbs-utils, perftest; busybox for the rest), and the agent as /init, which
// loads the modules. The guest's root is in memory and it has no disk. A test
// adds files by [Guest.Put]. Names are looked up in /usr/bin. A guest with an arm64
// processor has only the agent.
//
// # Channel
//
// The agent listens on a virtio serial port, whose other end is a socket of the
// test (package protocol): [Guest.Start] starts programs, any number at the same
// time, [Process] is one of them. The console goes to a file, which is shown when
// the guest fails to boot, ends by itself, or its test fails.
//
// # Networks
//
// A NIC is a TAP on a [nstest.Segment], where network namespaces of this machine
// and other guests can be. In the guest they are eth0, eth1... in order; eth0 up
// with the addresses of its host number, if it has one. A NIC can also be on a wire, a
// pair of sockets, which needs no namespace; [Guest.LoadInfiniBand] makes it an InfiniBand HCA.
//
// # The end
//
// A guest is killed, by its test's clean-up or with the test's process; TAPs and
// bridges go with their descriptors and namespaces. There is no orderly shutdown,
// because nothing in a guest is kept.
//
// # If guests are not available
//
// If QEMU, a program or a kernel is not available, [Enter] skips the test and
// reports what is missing; with CI=true in the environment the test fails.
package guest
