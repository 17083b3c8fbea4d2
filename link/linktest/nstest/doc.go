// Package nstest runs tests in their own network namespaces, so that tests of real
// interfaces need no root and leave nothing behind.
//
// # Entering
//
// [Enter] re-executes the test binary for the running test in a new network and mount
// namespace, and in a new user namespace if the caller lacks CAP_SYS_ADMIN. The parent
// waits, repeats the child's output and adopts its result. In the child, the loopback
// interface is up, /sys shows the devices of the new namespace, and /run is empty:
//
//	func TestTAP(t *testing.T) {
//		if nstest.Enter(t) {
//			return // the child has run it
//		}
//		... // root in an empty network
//	}
//
// When the child ends, the kernel removes the namespaces with everything in them. No test
// is skipped: if the namespaces cannot be created, the test fails and says what is missing. It
// also fails if the child skips it or a subtest.
//
// # More namespaces
//
// Inside, [New] creates further namespaces, [Veth] connects two of them, and [Pair] and
// [Switch] create the usual small networks. A [Segment] also accepts network interfaces
// of virtual machines. A [Namespace] has no name for `ip netns`: it is a descriptor, which
// the test's clean-up closes. [Namespace.Do] and [Namespace.Command] run code and programs
// in it. As root these also work without Enter, which benchmarks use.
//
// # Limits
//
// A process that outlives the child would keep its namespaces alive; those started by
// [Namespace.Command] are killed with the child. In a user namespace device nodes keep
// their owner, so the tests of the TAP require a /dev/net/tun that any user may open (mode
// 0666, the default of udev).
package nstest
