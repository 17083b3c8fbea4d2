// Package nstest runs tests in network namespaces of their own, so that tests
// of real interfaces need no root and leave nothing behind.
//
// # Entering
//
// [Enter] re-executes the test binary for the one running test in a new
// network and mount namespace, and in a new user namespace when the caller
// lacks CAP_SYS_ADMIN. The parent waits, repeats the child's output and takes
// its result over; the child has its loopback up and a /sys that shows its own
// devices:
//
//	func TestTAP(t *testing.T) {
//		if nstest.Enter(t) {
//			return // the child has run it
//		}
//		... // root in an empty network
//	}
//
// The kernel takes the namespaces away with the child, whatever it left in
// them. Nothing is skipped: where namespaces cannot be made, the test fails
// and says what is missing.
//
// # More namespaces
//
// Inside, [New] makes further namespaces, [Veth] joins two of them, [Pair] and
// [Switch] make the usual small networks; a [Segment] also takes network
// interfaces of virtual machines. A [Namespace] has no name that `ip
// netns` would know: it is a descriptor, closed by the test's clean-up.
// [Namespace.Do] and [Namespace.Command] run code and programs in it. As root
// these also work without Enter, which benchmarks use.
//
// # Limits
//
// A process that the child leaves behind would keep its namespaces alive;
// those started by [Namespace.Command] die with the child. In a user namespace
// device nodes keep their owner: the tests of the TAP need a /dev/net/tun that
// everybody may open (mode 0666, as udev has it).
package nstest
