// Testsum reads the output of one or more runs of go test -json from its
// standard input and prints what a person wants to see: a line for each
// package as it ends, the output of tests that failed, the reason of those that
// were skipped, and one line of totals at the end:
//
//	ok    ipoibd/hca                                  41 tests    0.01s
//	812 passed, 0 failed, 0 skipped
//
// Lines that are not JSON pass through. A command that runs under go tool test2json,
// such as a linter, counts as a package without tests.
//
// It exits with 1 when a test failed, when a package did not build, when a
// package or a test started and never ended (a run that was killed), when no
// test ran at all and, with --no-skips, when a test was skipped. The exit status
// of go test itself is left to the shell (set -o pipefail).
//
// Each test and each subtest counts as one; a package that fails without a
// failed test (it does not build, its process died) counts as one failure.
package main
