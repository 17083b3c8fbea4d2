// Package vm holds the tests against the real RDMA stack: virtual machines with
// Debian's kernels, the kernel's uverbs interface and its Soft-RoCE driver, each
// test on every series of kernels. `make test-vm` runs them.
//
// The packages beneath make the guests: kernel gets the kernels, image makes a
// guest's file system, agent is its first program, protocol is what agent and test
// say to each other, and guest puts these together and is what a test imports.
// numbered is a program that counts what arrives.
//
// # Scenarios
//
// A [machine] is a guest or a network namespace of this machine, so that a scenario
// does not care which is which; an [endpoint] is a machine with a daemon. What
// joins them is a segment (package nstest), on which a capture sees every frame
// and [verifyWire] checks each. [ping], [iperf] and [count] send traffic; [count]
// numbers its messages, as rxe drops silently.
//
// [TestTwoRxe] and [TestRxeWithSoftwareHCA] carry traffic, [TestKilledOnRxe] kills a
// daemon. `make bench-vm` runs TestCompare, with the tag bench: both backends
// (package compare) beside perftest.
//
// A [stream] is a TCP connection that lives through what is done to the device
// under it.
//
// [cable] joins two rxe devices of one guest, for tests of the backend alone, whose
// binary runs in the guest and whose results are subtests here.
//
// # Time
//
// A guest is some twenty times slower than this machine, and two of them keep two
// processors busy. Nothing is measured but ratios; limits only end what hangs.
package vm
