// Package vm holds the tests against the real RDMA stack: virtual machines with
// Debian's kernels, the kernel's uverbs interface and its Soft-RoCE driver.
// `make test-vm` runs those of what the kernel offers on every series of kernels, and
// those of what the daemon does on the newest; `make soak-vm` runs all on every one.
//
// The packages in this directory create the guests: kernel gets the kernels, image
// creates a guest's file system, agent is its first program, protocol is the
// protocol between agent and test, and guest combines these and is imported by
// tests. numbered is a program that counts messages. ibwire is an InfiniBand HCA for
// guests, and infiniband has the tests with it.
//
// # Scenarios
//
// A [machine] is a guest or a network namespace of this machine, so that scenarios
// work with both; an [endpoint] is a machine with a daemon. They are joined by a
// segment (package nstest), on which a capture sees every frame and [verifyWire]
// checks each. [ping], [iperf] and [count] send traffic; [count] numbers its
// messages, because rxe drops silently.
//
// [TestTwoRxe] and [TestRxeWithSoftwareHCA] carry traffic, [TestKilledOnRxe] kills a
// daemon. `make bench-vm` runs TestCompare, with the tag bench: both backends
// (package compare) beside perftest.
//
// A [stream] is a TCP connection that survives failures of the device under it.
//
// [cable] joins two rxe devices of one guest, for tests of the backend alone, whose
// binary runs in the guest and whose results are subtests here.
//
// # Time
//
// A guest is about twenty times slower than this machine, and two guests keep two
// processors busy. So the tests assert only ratios; time limits only end programs
// that hang.
package vm
