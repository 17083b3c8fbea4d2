// Package vm holds the tests against the real RDMA stack: guests with Debian's
// kernels (package guest), each test on every series of them.
package vm
